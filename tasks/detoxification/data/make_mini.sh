#!/usr/bin/env bash
# Write a small language of comments with known toxicity, and a tiny random model that knows its words.
# Further arguments: key=value, e.g. seed=1 marked=500
SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.detoxification.data.mini_world data_dir="$DATA_DIR" "$@"
python -m fgrlhf.cli.tiny_model "tasks.$TASK" train_file="$DATA_DIR/train.json" demonstrations="$DATA_DIR/corpus.json" \
    output_dir="$OUTPUT_DIR/base_model"
