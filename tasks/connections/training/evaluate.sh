#!/usr/bin/env bash
# Sample 4 responses to each test puzzle and judge them, with 95% intervals over puzzles.
#   evaluate.sh policy=$OUTPUT_DIR/dense/best name=dense [split=dev max_examples=100 ...]
# Results: $OUTPUT_DIR/eval/<name>-test/{rows.jsonl,summary.json}
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/test.json" data/make_puzzles.sh "data_dir split" "$@"
launch -m fgrlhf.cli.evaluate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
    config="$(config_for training/dense_config.yml)" num_samples=4 "$@"
