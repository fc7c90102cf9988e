#!/usr/bin/env bash
# RL with a reward after every line. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" data/make_puzzles.sh "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/dense_config.yml)" "$@"
