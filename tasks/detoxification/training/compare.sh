#!/usr/bin/env bash
# Compare the fine-grained reward with the holistic one over seeds, after equally many episodes.
#   compare.sh [seeds=0,1,2,3,4] [metric=judge] [num_samples=4]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "$0")/../../../scripts/call.sh" compare_runs "training/holistic_config.yml training/fine_grained_config.yml" \
    "train.json" "mini:pretrained=training/train_pretrain.sh mini:span_rm small:reward_scorer=reward_modeling/train_scorers.sh" "$@"
