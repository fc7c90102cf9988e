#!/usr/bin/env bash
# DPO on the pairs. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
stage fgrlhf.cli.dpo training/dpo_config.yml "train_pairs.json" "sft" "$@"
