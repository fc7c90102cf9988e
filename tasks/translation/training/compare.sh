#!/usr/bin/env bash
# Compare severity spans, the same sum as one scalar, and preferences over seeds, after equally many episodes.
#   compare.sh [seeds=0,1,2,3,4] [metric=oracle/mqm] [algorithm.name=grpo ...]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
compare_runs "training/preference_config.yml training/scalar_config.yml training/spans_config.yml" "train.json" \
    "sft pref_rm span_rm omission_rm" evaluation="$(config_for training/spans_config.yml)" "$@"
