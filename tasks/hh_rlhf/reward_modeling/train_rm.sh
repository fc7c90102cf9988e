#!/usr/bin/env bash
# Train the pairwise reward model. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage reward_modeling.run_pref_rm reward_modeling/rm_config.yml "train_pairs.json" "" "$@"
