#!/usr/bin/env bash
# RL with a reward model of preferences. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
needs "$OUTPUT_DIR/pref_rm" reward_modeling/train_pref_rm.sh "reward.*" "$@"
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/preference_config.yml)" "$@"
