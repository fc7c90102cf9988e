#!/usr/bin/env bash
# RL with the sum of the rewards of spans_config.yml as one scalar at the end. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
stage fgrlhf.cli.rl training/scalar_config.yml "train.json" "sft span_rm omission_rm" "$@"
