#!/usr/bin/env bash
# DPO on the pairs. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train_pairs.json" "$(data_script)" "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
launch -m fgrlhf.cli.dpo "tasks.$TASK" "$(config_for training/dpo_config.yml)" "$@"
