#!/usr/bin/env bash
# Holistic RLHF from the SFT policy and the reward models.
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
launch -m tasks.qa_feedback.training.train_baseline "$(config_for training/baseline_config.yml)" "$@"
