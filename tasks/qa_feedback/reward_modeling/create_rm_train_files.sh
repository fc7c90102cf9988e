#!/usr/bin/env bash
# Training files of the relevance, factuality and completeness reward models, from the feedback.
# Reads $DATA_DIR/{train,dev}_feedback.json, writes {NF-ERR_subsentence,F-ERR_sentence,COMP_sequence}/{train,dev}.json in
# $OUTPUT_DIR/derived
# Arguments: key=value, e.g. segmenter=blank_en_sentencizer
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train_feedback.json" "" data_dir "$@"
python -m tasks.qa_feedback.reward_modeling.create_rm_files data_dir="$DATA_DIR" \
    output_dir="$OUTPUT_DIR/derived" "$@"
