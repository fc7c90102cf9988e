#!/usr/bin/env bash
# Sample translations of the test sources and rate them.
#   evaluate.sh policy=$OUTPUT_DIR/spans/best name=spans [num_samples=4 do_sample=true ...]
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/test.json" "$(data_script)" "data_dir split" "$@"
needs "$OUTPUT_DIR/span_rm" reward_modeling/train_span_rm.sh "config reward" "$@"
needs "$OUTPUT_DIR/omission_rm" reward_modeling/train_omission_rm.sh "config reward" "$@"
launch -m fgrlhf.cli.evaluate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
    config="$(config_for training/spans_config.yml)" "$@"
