#!/usr/bin/env bash
# RL with the sum of the rewards of spans_config.yml as one scalar at the end. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/scalar_config.yml "train.json" "sft span_rm omission_rm" "$@"
