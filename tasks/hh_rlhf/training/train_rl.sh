#!/usr/bin/env bash
# RL against the reward model: algorithm.name=ppo, grpo, ... Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/rl_config.yml "train.json" "sft rm" "$@"
