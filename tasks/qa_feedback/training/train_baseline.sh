#!/usr/bin/env bash
# Holistic RLHF from the SFT policy and the reward models.
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
needs "$OUTPUT_DIR/baseline_rm" reward_modeling/train_baseline_rm.sh "reward.*" "$@"
launch -m tasks.qa_feedback.training.train_baseline "$(config_for training/baseline_config.yml)" "$@"
