#!/usr/bin/env bash
# Sample solutions of the test problems and rate them.
#   evaluate.sh policy=$OUTPUT_DIR/process/best name=process [num_samples=4 ...]
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/test.json" "$(data_script)" "data_dir split" "$@"
needs "$OUTPUT_DIR/prm" reward_modeling/train_prm.sh "config reward" "$@"
launch -m fgrlhf.cli.evaluate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
    config="$(config_for training/process_config.yml)" do_sample=true "$@"
