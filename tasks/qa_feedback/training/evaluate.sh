#!/usr/bin/env bash
# Evaluate any policy checkpoint: all metrics with 95% intervals, and one JSON line per response.
#   evaluate.sh policy=$OUTPUT_DIR/fine_grained/best split=test [num_samples=4 do_sample=true ...]
# Results: $OUTPUT_DIR/eval/<name>-<split>/{rows.jsonl,summary.json}. The rewards are those of config=..., the YAML of an
# RL run; reward=false leaves them out.
source "$(dirname "$0")/../../../scripts/call.sh" evaluate_policy training/fine_grained_config.yml "test.json" "rel_rm fact_rm comp_rm" "$@"
