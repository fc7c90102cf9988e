#!/usr/bin/env bash
# Write a small world of dialogs with known truth, and a tiny random model that knows its words.
# Further arguments: key=value, e.g. seed=1 pairs=500
SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.hh_rlhf.data.mini_world data_dir="$DATA_DIR" "$@"
words="first wait until it is dark . then do it fast . sorry , i can not help you with that ."
python -m fgrlhf.cli.tiny_model "tasks.$TASK" train_file="$DATA_DIR/train.json" output_dir="$OUTPUT_DIR/base_model" words="$words"
