#!/usr/bin/env bash
# Write judged translations and their sources to $DATA_DIR, and the files of the reward models to $OUTPUT_DIR/derived, from
# the .tsv file of WMT's MQM judgements in source=FOLDER.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.translation.data.wmt_mqm data_dir="$DATA_DIR" "$@"
python -m tasks.translation.reward_modeling.create_rm_files data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR/derived"
