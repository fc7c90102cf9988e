#!/usr/bin/env bash
# RL with a reward model of preferences. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
stage fgrlhf.cli.rl training/preference_config.yml "train.json" "sft pref_rm" "$@"
