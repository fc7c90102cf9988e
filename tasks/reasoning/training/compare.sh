#!/usr/bin/env bash
# Compare the process reward with the outcome reward over seeds, after equally many episodes.
#   compare.sh [seeds=0,1,2,3,4] [metric=oracle/solution] [algorithm.name=grpo ...]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "$0")/../../../scripts/call.sh" compare_runs "training/outcome_config.yml training/process_config.yml" "train.json" "sft prm" "$@"
