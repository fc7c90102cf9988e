#!/usr/bin/env bash
# RL against the reward model: algorithm.name=ppo, grpo, ... Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
stage fgrlhf.cli.rl training/rl_config.yml "train.json" "sft rm" "$@"
