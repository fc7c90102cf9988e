#!/usr/bin/env bash
# Train the reward model that judges the words of a translation. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
stage reward_modeling.run_fg_rm reward_modeling/span_rm_config.yml "span_segments/train.json" "" "$@"
