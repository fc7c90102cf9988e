#!/usr/bin/env bash
# Train PPO, GRPO and DPO from the SFT policy and compare them: reward, KL, and where it is known the truth.
#   compare.sh [seeds=0,1,2] [metric=oracle/quality] [train.total_episodes=1920]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
compare_runs "training/rl_config.yml dpo:training/dpo_config.yml" "train.json" "sft rm" algorithms=ppo,grpo \
    settings="$(config_for training/compare_config.yml)" "$@"
