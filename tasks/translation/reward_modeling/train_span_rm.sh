#!/usr/bin/env bash
# Train the reward model that judges the words of a translation. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/span_segments/train.json" "$(data_script)" "data.*" "$@"
launch -m reward_modeling.run_fg_rm "tasks.$TASK" "$(config_for reward_modeling/span_rm_config.yml)" "$@"
