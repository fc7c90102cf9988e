#!/usr/bin/env bash
# RL with the same reward once, at the end of the response. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" "data.*" "$@"
needs_at mini "$OUTPUT_DIR/pretrained" training/train_pretrain.sh "model.*" "$@"
needs_at mini "$OUTPUT_DIR/span_rm" reward_modeling/train_span_rm.sh "reward.* reward config" "$@"
needs_at small "$OUTPUT_DIR/reward_scorer" reward_modeling/train_scorers.sh "reward.* reward config" "$@"
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/holistic_config.yml)" "$@"
