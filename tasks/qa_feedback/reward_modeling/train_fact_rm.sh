#!/usr/bin/env bash
# R2, the factuality reward model, from F-ERR_sentence. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage reward_modeling.run_fg_rm reward_modeling/fact_rm_config.yml \
    "derived/F-ERR_sentence/train.json=reward_modeling/create_rm_train_files.sh" "" "$@"
