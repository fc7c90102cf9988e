#!/usr/bin/env bash
# Supervised fine-tuning on translations. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage sft.run_sft training/sft_config.yml "train.json" "" "$@"
