#!/usr/bin/env bash
# Sample a response to every dev puzzle, to collect feedback on it.
#   generate.sh policy=$OUTPUT_DIR/sft [split=train max_examples=500 ...]
# Result: $OUTPUT_DIR/generated/<name>-dev/samples.jsonl
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/dev.json" data/make_puzzles.sh "data_dir split" "$@"
launch -m fgrlhf.cli.generate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" split=dev num_samples=1 "$@"
