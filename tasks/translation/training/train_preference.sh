#!/usr/bin/env bash
# RL with a reward model of preferences. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/preference_config.yml)" "$@"
