#!/usr/bin/env bash
# Compare the reward after every line with the same reward at the end over seeds, after equally many episodes.
#   compare.sh [seeds=0,1,2] [metric=right_groups] [num_samples=4]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" data/make_puzzles.sh data_dir "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
python -m fgrlhf.pipeline.compare "tasks.$TASK" "$(config_for training/scalar_config.yml)" \
    "$(config_for training/dense_config.yml)" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR/compare" "$@"
