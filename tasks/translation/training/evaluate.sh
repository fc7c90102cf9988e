#!/usr/bin/env bash
# Sample translations of the test sources and rate them.
#   evaluate.sh policy=$OUTPUT_DIR/spans/best name=spans [num_samples=4 do_sample=true ...]
source "$(dirname "$0")/../../../scripts/call.sh" evaluate_policy training/spans_config.yml "test.json" "span_rm omission_rm" "$@"
