#!/usr/bin/env bash
# The holistic preference reward model, from the preferences of the feedback files.
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train_feedback.json" "$(data_script)" "data.*" "$@"
launch -m reward_modeling.run_pref_rm "$TASK" "$(config_for reward_modeling/baseline_rm_config.yml)" "$@"
