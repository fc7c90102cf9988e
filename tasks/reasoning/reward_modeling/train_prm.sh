#!/usr/bin/env bash
# Train the process reward model, which judges every step. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage reward_modeling.run_fg_rm reward_modeling/prm_config.yml "step/train.json" "" "$@"
