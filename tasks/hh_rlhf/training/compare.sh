#!/usr/bin/env bash
# Train PPO, GRPO and DPO from the SFT policy and compare them: reward, KL, and where it is known the truth.
#   compare.sh [seeds=0,1,2] [metric=oracle/quality] [train.total_episodes=1920]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" data_dir "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
needs "$OUTPUT_DIR/rm" reward_modeling/train_rm.sh "reward.*" "$@"
python -m fgrlhf.pipeline.compare "tasks.$TASK" "$(config_for training/rl_config.yml)" "dpo:$(config_for training/dpo_config.yml)" \
    algorithms=ppo,grpo settings="$(config_for training/compare_config.yml)" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR/compare" "$@"
