#!/usr/bin/env bash
# Sample four answers to every question of a split, to collect feedback on them.
#   generate.sh policy=$OUTPUT_DIR/sft split=train [max_examples=3000 ...]
# Result: $OUTPUT_DIR/generated/<name>-<split>/samples.jsonl
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "" "data_dir split" "$@"
launch -m fgrlhf.cli.generate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" "$@"
