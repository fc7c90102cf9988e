#!/usr/bin/env bash
# Sample answers to the test prompts and rate them.
#   evaluate.sh policy=$OUTPUT_DIR/ppo/best name=ppo [max_examples=100 ...]
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/test.json" "$(data_script)" "data_dir split" "$@"
needs "$OUTPUT_DIR/rm" reward_modeling/train_rm.sh "config reward" "$@"
launch -m fgrlhf.cli.evaluate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
    config="$(config_for training/rl_config.yml)" do_sample=true "$@"
