#!/usr/bin/env bash
# Supervised fine-tuning on solutions. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/sft.json" "$(data_script)" "data.*" "$@"
launch -m sft.run_sft "tasks.$TASK" "$(config_for training/sft_config.yml)" "$@"
