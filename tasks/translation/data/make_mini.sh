#!/usr/bin/env bash
# Write a small world of translations with known errors, the files of its reward models, and a tiny random model that knows
# its words. Further arguments: key=value, e.g. seed=1 judged=500
SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.translation.data.mini_world data_dir="$DATA_DIR" "$@"
python -m tasks.translation.reward_modeling.create_rm_files data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR/derived"
python -m fgrlhf.cli.tiny_model "tasks.$TASK" train_file="$DATA_DIR/train.json" demonstrations="$DATA_DIR/sft.json" \
    shape=seq2seq width=96 output_dir="$OUTPUT_DIR/base_model"
