#!/usr/bin/env bash
# R1, the relevance reward model, from NF-ERR_subsentence (written by create_rm_train_files.sh).
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/NF-ERR_subsentence/train.json" reward_modeling/create_rm_train_files.sh "data.*" "$@"
launch -m reward_modeling.run_fg_rm "$TASK" "$(config_for reward_modeling/rel_rm_config.yml)" "$@"
