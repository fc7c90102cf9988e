#!/usr/bin/env bash
# Supervised fine-tuning on the demonstrations. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/demonstrations.json" data/make_puzzles.sh "data.*" "$@"
launch -m sft.run_sft "tasks.$TASK" "$(config_for training/sft_config.yml)" "$@"
