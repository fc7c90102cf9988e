#!/usr/bin/env bash
# Compare the process reward with the outcome reward over seeds, after equally many episodes.
#   compare.sh [seeds=0,1,2,3,4] [metric=oracle/solution] [algorithm.name=grpo ...]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" data_dir "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
needs "$OUTPUT_DIR/prm" reward_modeling/train_prm.sh "reward.*" "$@"
python -m fgrlhf.pipeline.compare "tasks.$TASK" "$(config_for training/outcome_config.yml)" \
    "$(config_for training/process_config.yml)" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR/compare" "$@"
