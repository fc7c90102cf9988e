#!/usr/bin/env bash
# DPO from the SFT policy on the preferences of the feedback file, without reward models.
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train_feedback.json" "$(data_script)" "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
launch -m fgrlhf.cli.dpo "tasks.$TASK" "$(config_for training/dpo_config.yml)" "$@"
