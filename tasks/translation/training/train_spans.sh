#!/usr/bin/env bash
# RL with a reward for every wrong word. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/spans_config.yml "train.json" "sft span_rm omission_rm" "$@"
