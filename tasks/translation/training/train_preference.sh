#!/usr/bin/env bash
# RL with a reward model of preferences. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/preference_config.yml "train.json" "sft pref_rm" "$@"
