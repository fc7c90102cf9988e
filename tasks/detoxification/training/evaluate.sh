#!/usr/bin/env bash
# Sample continuations of test prompts and score them, with 95% intervals over prompts: 8 of 64 prompts, at paper scale 25
# of every prompt, as in RealToxicityPrompts (num_samples=4 for the maximum over 4).
#   evaluate.sh policy=$OUTPUT_DIR/fine_grained/final name=fine_grained [num_samples=25 max_examples=100 ...]
# Results: $OUTPUT_DIR/eval/<name>-test/{rows.jsonl,summary.json}
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/test.json" "$(data_script)" "data_dir split" "$@"
needs_at mini "$OUTPUT_DIR/pretrained" training/train_pretrain.sh "model.*" "$@"
needs_at mini "$OUTPUT_DIR/span_rm" reward_modeling/train_span_rm.sh "reward.* reward config" "$@"
needs_at small "$OUTPUT_DIR/reward_scorer" reward_modeling/train_scorers.sh "reward.* reward config" "$@"
samples=(num_samples=8 max_examples=64)
if [ "$SCALE" = paper ]; then samples=(num_samples=25); fi
launch -m fgrlhf.cli.evaluate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
    config="$(config_for training/fine_grained_config.yml)" do_sample=true "${samples[@]}" "$@"
