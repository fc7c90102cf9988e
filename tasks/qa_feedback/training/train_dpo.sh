#!/usr/bin/env bash
# DPO from the SFT policy on the preferences of the feedback file, without reward models. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.dpo training/dpo_config.yml "train_feedback.json" "sft" "$@"
