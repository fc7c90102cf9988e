#!/usr/bin/env bash
# RL with the sum of the rewards of spans_config.yml as one scalar at the end. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
needs "$OUTPUT_DIR/span_rm" reward_modeling/train_span_rm.sh "reward.*" "$@"
needs "$OUTPUT_DIR/omission_rm" reward_modeling/train_omission_rm.sh "reward.*" "$@"
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/scalar_config.yml)" "$@"
