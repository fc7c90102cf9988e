#!/usr/bin/env bash
# Sample 8 continuations of 64 test prompts and score them by the judge, with 95% intervals over prompts.
#   evaluate.sh policy=$OUTPUT_DIR/fine_grained/final name=fine_grained [num_samples=25 max_examples=100 ...]
# Results: $OUTPUT_DIR/eval/<name>-test/{rows.jsonl,summary.json}
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
launch -m fgrlhf.cli.evaluate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
    config="$(config_for training/fine_grained_config.yml)" do_sample=true num_samples=8 max_examples=64 "$@"
