#!/usr/bin/env bash
# RL with the same reward once, at the end of the response. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/holistic_config.yml "train.json" \
    "mini:pretrained=training/train_pretrain.sh mini:span_rm small:reward_scorer=reward_modeling/train_scorers.sh" "$@"
