#!/usr/bin/env bash
# Train the reward model of whole translations from pairs. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/mqm_pairs/train.jsonl" "$(data_script)" "data.*" "$@"
launch -m reward_modeling.run_pref_rm "tasks.$TASK" "$(config_for reward_modeling/pref_rm_config.yml)" "$@"
