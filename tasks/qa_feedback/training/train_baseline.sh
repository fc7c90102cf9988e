#!/usr/bin/env bash
# Holistic RLHF from the SFT policy and the reward models. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
stage fgrlhf.cli.rl training/baseline_config.yml "train.json" "sft baseline_rm" "$@"
