#!/usr/bin/env bash
# DPO from the SFT policy on corrected over predicted answers, marked spans weighted. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.dpo training/fine_grained_dpo_config.yml "train_feedback.json" "sft" "$@"
