#!/usr/bin/env bash
# DPO from the SFT policy on corrected over predicted answers, marked spans weighted.
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train_feedback.json" "$(data_script)" "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
launch -m fgrlhf.cli.dpo "tasks.$TASK" "$(config_for training/fine_grained_dpo_config.yml)" "$@"
