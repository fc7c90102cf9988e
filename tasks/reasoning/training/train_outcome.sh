#!/usr/bin/env bash
# RL with one reward at the end, for the right answer. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/outcome_config.yml)" "$@"
