#!/usr/bin/env bash
# RL with the sum of the same values once, at the end of the response. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" data/make_puzzles.sh "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/scalar_config.yml)" "$@"
