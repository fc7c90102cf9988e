#!/usr/bin/env bash
# DPO on the pairs. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.dpo training/dpo_config.yml "train_pairs.json" "sft" "$@"
