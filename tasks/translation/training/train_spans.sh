#!/usr/bin/env bash
# RL with a reward for every wrong word. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/spans_config.yml)" "$@"
