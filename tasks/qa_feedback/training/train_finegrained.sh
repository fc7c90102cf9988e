#!/usr/bin/env bash
# Fine-grained RLHF from the SFT policy and the reward models. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/fine_grained_config.yml "train.json" \
    "sft rel_rm@relevance_model fact_rm@factuality_model comp_rm@completeness_model" "$@"
