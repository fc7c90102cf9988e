#!/usr/bin/env bash
# Train the process reward model, which judges every step. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/step/train.json" "$(data_script)" "data.*" "$@"
launch -m reward_modeling.run_fg_rm "tasks.$TASK" "$(config_for reward_modeling/prm_config.yml)" "$@"
