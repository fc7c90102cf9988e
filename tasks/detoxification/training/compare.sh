#!/usr/bin/env bash
# Compare the fine-grained reward with the holistic one over seeds, after equally many episodes.
#   compare.sh [seeds=0,1,2,3,4] [metric=judge] [num_samples=4]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m fgrlhf.pipeline.compare "tasks.$TASK" "$(config_for training/holistic_config.yml)" \
    "$(config_for training/fine_grained_config.yml)" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR/compare" "$@"
