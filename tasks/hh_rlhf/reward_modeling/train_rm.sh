#!/usr/bin/env bash
# Train the pairwise reward model. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train_pairs.json" "$(data_script)" "data.*" "$@"
launch -m reward_modeling.run_pref_rm "tasks.$TASK" "$(config_for reward_modeling/rm_config.yml)" "$@"
