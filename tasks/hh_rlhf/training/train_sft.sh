#!/usr/bin/env bash
# Supervised fine-tuning on the preferred answers. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage sft.run_sft training/sft_config.yml "sft.json" "" "$@"
