#!/usr/bin/env bash
# Sample 8 continuations of the 64 test openings and score them by the judge, with 95% intervals over openings.
#   evaluate.sh policy=$OUTPUT_DIR/fine_grained/final name=fine_grained [num_samples=25 ...]
# Results: $OUTPUT_DIR/eval/<name>-test/{rows.jsonl,summary.json}
source "$(dirname "$0")/../../../scripts/call.sh" evaluate_policy training/fine_grained_config.yml "" \
    'small:$FGRLHF_SMALL_MODEL=scripts/get_small_model.sh' do_sample=true num_samples=8 "$@"
