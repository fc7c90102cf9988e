#!/usr/bin/env bash
# Train the reward model of whole translations from pairs. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage reward_modeling.run_pref_rm reward_modeling/pref_rm_config.yml "derived/mqm_pairs/train.jsonl" "" "$@"
