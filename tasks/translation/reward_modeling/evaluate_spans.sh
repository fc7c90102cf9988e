#!/usr/bin/env bash
# Measure how well the reward model of the spans finds the marks of unseen translations.
#   evaluate_spans.sh [source=FILE ckpt=FOLDER output=FILE]
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$OUTPUT_DIR/span_rm" reward_modeling/train_span_rm.sh "ckpt" "$@"
needs "$DATA_DIR/judged_dev.jsonl" "" source "$@"
python -m tasks.translation.reward_modeling.evaluate_spans ckpt="$OUTPUT_DIR/span_rm" source="$DATA_DIR/judged_dev.jsonl" \
    output="$OUTPUT_DIR/span_results.json" "$@"
