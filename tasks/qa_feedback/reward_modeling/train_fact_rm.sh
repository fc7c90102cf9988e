#!/usr/bin/env bash
# R2, the factuality reward model, from F-ERR_sentence (written by create_rm_train_files.sh).
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/F-ERR_sentence/train.json" reward_modeling/create_rm_train_files.sh "data.*" "$@"
launch -m reward_modeling.run_fg_rm "$TASK" "$(config_for reward_modeling/fact_rm_config.yml)" "$@"
