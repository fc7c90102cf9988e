#!/usr/bin/env bash
# The holistic preference reward model, from the preferences of the feedback files. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage reward_modeling.run_pref_rm reward_modeling/baseline_rm_config.yml "train_feedback.json" "" "$@"
