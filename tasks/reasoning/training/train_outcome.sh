#!/usr/bin/env bash
# RL with one reward at the end, for the right answer. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/outcome_config.yml "train.json" "sft" "$@"
