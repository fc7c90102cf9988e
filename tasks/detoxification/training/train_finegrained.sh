#!/usr/bin/env bash
# RL with a reward after every sentence. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" "data.*" "$@"
case "$SCALE" in
    mini)
        needs "$OUTPUT_DIR/pretrained" training/train_pretrain.sh "model.*" "$@"
        needs "$OUTPUT_DIR/span_rm" reward_modeling/train_span_rm.sh "reward.* reward config" "$@"
        ;;
    small) needs "$OUTPUT_DIR/reward_scorer" reward_modeling/train_scorers.sh "reward.* reward config" "$@" ;;
esac
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/fine_grained_config.yml)" "$@"
