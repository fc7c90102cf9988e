#!/usr/bin/env bash
# The neural scorer of sentences, from people's marks in span_segments. Then compares it with the linear scorers on held-out
# texts, if train_scorers.sh has trained them. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
stage reward_modeling.run_fg_rm reward_modeling/span_rm_config.yml \
    "mini:span_segments/train.json small:derived/span_segments/train.json=reward_modeling/create_rm_train_files.sh" "" "$@"
if [ -e "$OUTPUT_DIR/reward_scorer/linear_scorer.json" ]; then
    python -m tasks.detoxification.compare_scorers data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
        span_rm="$(run_folder "$OUTPUT_DIR/span_rm" "$@")"
fi
