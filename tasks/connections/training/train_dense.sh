#!/usr/bin/env bash
# RL with a reward after every line. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/dense_config.yml "train.json" "sft" "$@"
