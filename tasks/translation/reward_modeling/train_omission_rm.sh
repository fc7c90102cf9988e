#!/usr/bin/env bash
# Train the reward model that judges whether a translation leaves something out. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage reward_modeling.run_fg_rm reward_modeling/omission_rm_config.yml "derived/omission_segments/train.json" "" "$@"
