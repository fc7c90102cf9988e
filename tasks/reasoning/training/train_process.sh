#!/usr/bin/env bash
# RL with a reward after every step, by the process reward model. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/process_config.yml "train.json" "sft prm" "$@"
