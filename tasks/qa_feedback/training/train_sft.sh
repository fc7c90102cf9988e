#!/usr/bin/env bash
# Supervised fine-tuning of the policy: $OUTPUT_DIR/sft. Further arguments: key=value overrides of the YAML.
# SFT-full: train_sft.sh data.train_file=$DATA_DIR/train.json logging.save_dir=$OUTPUT_DIR/sft_full
# At mini scale $OUTPUT_DIR/base_model replaces t5-large; the script creates it if it is missing.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/dev.json" "" "data.*" "$@"

here=tasks/qa_feedback/training
data=()
# the base model has the seed of the run
number="$(setting train.seed "" "$@")"
seed=()
if [ -n "$number" ]; then seed=(train.seed="$number"); fi
if [ "$SCALE" = mini ]; then
    # only the mini world has pages to recite; with other rows the base model stays untrained
    if [ -f "$DATA_DIR/pretrain.json" ]; then base="$OUTPUT_DIR/base_model_init"; else base="$OUTPUT_DIR/base_model"; fi
    if ! [ -f "$base/tokenizer_config.json" ]; then
        python -m tasks.qa_feedback.data.mini_model data_dir="$DATA_DIR" output_dir="$base" ${seed[@]+"${seed[@]/#train./}"}
    fi
    if [ -f "$DATA_DIR/pretrain.json" ]; then
        launch -m sft.run_sft "$here/mini_pretrain_config.yml" ${seed[@]+"${seed[@]}"}
    fi
    for name in sft train_1k train; do
        if [ -f "$DATA_DIR/$name.json" ]; then data=(data.train_file="$DATA_DIR/$name.json"); break; fi
    done
fi
launch -m sft.run_sft "$(config_for training/sft_config.yml)" ${data[@]+"${data[@]}"} "$@"
