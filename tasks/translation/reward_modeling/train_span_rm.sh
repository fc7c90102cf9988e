#!/usr/bin/env bash
# Train the reward model that judges the words of a translation. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage reward_modeling.run_fg_rm reward_modeling/span_rm_config.yml "derived/span_segments/train.json" "" "$@"
