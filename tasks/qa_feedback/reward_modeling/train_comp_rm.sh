#!/usr/bin/env bash
# R3, the completeness reward model, from COMP_sequence (written by create_rm_train_files.sh).
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/COMP_sequence/train.json" reward_modeling/create_rm_train_files.sh "data.*" "$@"
launch -m reward_modeling.run_pref_rm "$TASK" "$(config_for reward_modeling/comp_rm_config.yml)" "$@"
