#!/usr/bin/env bash
# Evaluate any policy checkpoint: all metrics with 95% intervals, and one JSON line per response.
#   evaluate.sh policy=$OUTPUT_DIR/fine_grained/best split=test [num_samples=4 do_sample=true ...]
# Results: $OUTPUT_DIR/eval/<name>-<split>/{rows.jsonl,summary.json}. The rewards are those of config=..., the YAML of an
# RL run; reward=false leaves them out.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/test.json" "$(data_script)" "data_dir split" "$@"
needs "$OUTPUT_DIR/rel_rm" reward_modeling/train_rel_rm.sh "config reward" "$@"
needs "$OUTPUT_DIR/fact_rm" reward_modeling/train_fact_rm.sh "config reward" "$@"
needs "$OUTPUT_DIR/comp_rm" reward_modeling/train_comp_rm.sh "config reward" "$@"
launch -m fgrlhf.cli.evaluate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
    config="$(config_for training/fine_grained_config.yml)" "$@"
