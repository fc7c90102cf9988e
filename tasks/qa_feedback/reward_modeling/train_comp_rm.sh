#!/usr/bin/env bash
# R3, the completeness reward model, from COMP_sequence. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage reward_modeling.run_pref_rm reward_modeling/comp_rm_config.yml \
    "derived/COMP_sequence/train.json=reward_modeling/create_rm_train_files.sh" "" "$@"
