#!/usr/bin/env bash
# R1, the relevance reward model, from NF-ERR_subsentence. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage reward_modeling.run_fg_rm reward_modeling/rel_rm_config.yml \
    "derived/NF-ERR_subsentence/train.json=reward_modeling/create_rm_train_files.sh" "" "$@"
