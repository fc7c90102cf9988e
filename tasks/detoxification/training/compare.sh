#!/usr/bin/env bash
# Compare the fine-grained reward with the holistic one over seeds, after equally many episodes.
#   compare.sh [seeds=0,1,2,3,4] [metric=judge] [num_samples=4]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" data_dir "$@"
needs_at mini "$OUTPUT_DIR/pretrained" training/train_pretrain.sh "model.*" "$@"
needs_at mini "$OUTPUT_DIR/span_rm" reward_modeling/train_span_rm.sh "reward.* reward config" "$@"
needs_at small "$OUTPUT_DIR/reward_scorer" reward_modeling/train_scorers.sh "reward.* reward config" "$@"
python -m fgrlhf.pipeline.compare "tasks.$TASK" "$(config_for training/holistic_config.yml)" \
    "$(config_for training/fine_grained_config.yml)" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR/compare" "$@"
