#!/usr/bin/env bash
# Write the files of the reward models to $OUTPUT_DIR/derived, from $DATA_DIR/judged_{train,dev}.jsonl.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/judged_train.jsonl" "" data_dir "$@"
python -m tasks.translation.reward_modeling.create_rm_files data_dir="$DATA_DIR" \
    output_dir="$OUTPUT_DIR/derived" "$@"
