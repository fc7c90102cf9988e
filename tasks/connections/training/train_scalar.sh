#!/usr/bin/env bash
# RL with the sum of the same values once, at the end of the response. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/scalar_config.yml "train.json" "sft" "$@"
