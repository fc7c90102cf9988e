#!/usr/bin/env bash
# The neural scorer of whole texts, from the order of Perspective scores in score_pairs. Then compares it with the linear
# scorers on held-out texts, if train_scorers.sh has trained them. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
stage reward_modeling.run_pref_rm reward_modeling/score_rm_config.yml \
    "derived/score_pairs/train.json=reward_modeling/create_rm_train_files.sh" "" "$@"
if [ -e "$OUTPUT_DIR/reward_scorer/linear_scorer.json" ]; then
    python -m tasks.detoxification.compare_scorers data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
        score_rm="$(run_folder "$OUTPUT_DIR/score_rm" "$@")"
fi
