#!/usr/bin/env bash
# Compare the reward after every line with the same reward at the end over seeds, after equally many episodes.
#   compare.sh [seeds=0,1,2] [metric=right_groups] [num_samples=4]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "$0")/../../../scripts/call.sh" compare_runs "training/scalar_config.yml training/dense_config.yml" "train.json" "sft" "$@"
