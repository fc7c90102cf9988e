#!/usr/bin/env bash
# Sample continuations of test prompts and score them, with 95% intervals over prompts: 8 of 64 prompts, at paper scale 25
# of every prompt, as in RealToxicityPrompts (num_samples=4 for the maximum over 4).
#   evaluate.sh policy=$OUTPUT_DIR/fine_grained/final name=fine_grained [num_samples=25 max_examples=100 ...]
# Results: $OUTPUT_DIR/eval/<name>-test/{rows.jsonl,summary.json}
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
models="mini:pretrained=training/train_pretrain.sh mini:span_rm small:reward_scorer=reward_modeling/train_scorers.sh"
samples=(num_samples=8 max_examples=64)
if [ "$SCALE" = paper ]; then samples=(num_samples=25); fi
evaluate_policy training/fine_grained_config.yml "test.json" "$models" do_sample=true "${samples[@]}" "$@"
