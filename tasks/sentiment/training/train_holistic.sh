#!/usr/bin/env bash
# RL with the same reward once, at the end of the response. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
launch -m fgrlhf.cli.rl "tasks.$TASK" "$(config_for training/holistic_config.yml)" "$@"
