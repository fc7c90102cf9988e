#!/usr/bin/env bash
# Holistic RLHF from the SFT policy and the reward models. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/baseline_config.yml "train.json" "sft baseline_rm" "$@"
