#!/usr/bin/env bash
# Training files of the neural scorers in $OUTPUT_DIR/derived/{span_segments,score_pairs}/{train,dev}.json, from the downloaded files
# in $DATA_DIR/source (source=... for others).
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/source" data/download.sh source "$@"
python -m tasks.detoxification.reward_modeling.create_rm_files source="$DATA_DIR/source" \
    output_dir="$OUTPUT_DIR/derived" "$@"
