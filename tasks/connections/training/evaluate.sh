#!/usr/bin/env bash
# Sample 4 responses to each test puzzle and judge them, with 95% intervals over puzzles.
#   evaluate.sh policy=$OUTPUT_DIR/dense/best name=dense [split=dev max_examples=100 ...]
# Results: $OUTPUT_DIR/eval/<name>-test/{rows.jsonl,summary.json}
source "$(dirname "$0")/../../../scripts/call.sh" evaluate_policy training/dense_config.yml "test.json" "" num_samples=4 "$@"
