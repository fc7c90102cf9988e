#!/usr/bin/env bash
# Compare severity spans, the same sum as one scalar, and preferences over seeds, after equally many episodes.
#   compare.sh [seeds=0,1,2,3,4] [metric=oracle/mqm] [algorithm.name=grpo ...]
# Writes $OUTPUT_DIR/compare/index.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" data_dir "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
needs "$OUTPUT_DIR/pref_rm" reward_modeling/train_pref_rm.sh "reward.*" "$@"
needs "$OUTPUT_DIR/span_rm" reward_modeling/train_span_rm.sh "reward.*" "$@"
needs "$OUTPUT_DIR/omission_rm" reward_modeling/train_omission_rm.sh "reward.*" "$@"
python -m fgrlhf.pipeline.compare "tasks.$TASK" "$(config_for training/preference_config.yml)" \
    "$(config_for training/scalar_config.yml)" "$(config_for training/spans_config.yml)" \
    evaluation="$(config_for training/spans_config.yml)" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR/compare" "$@"
