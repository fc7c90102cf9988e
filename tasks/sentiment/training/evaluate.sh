#!/usr/bin/env bash
# Sample 8 continuations of the 64 test openings and score them by the judge, with 95% intervals over openings.
#   evaluate.sh policy=$OUTPUT_DIR/fine_grained/final name=fine_grained [num_samples=25 ...]
# Results: $OUTPUT_DIR/eval/<name>-test/{rows.jsonl,summary.json}
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
if [ "$SCALE" = small ]; then needs "$FGRLHF_SMALL_MODEL" scripts/get_small_model.sh "model.*" "$@"; fi
evaluate_policy training/fine_grained_config.yml "" "" do_sample=true num_samples=8 "$@"
