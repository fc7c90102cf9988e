#!/usr/bin/env bash
# Sample answers to the test prompts and rate them.
#   evaluate.sh policy=$OUTPUT_DIR/ppo/best name=ppo [max_examples=100 ...]
source "$(dirname "$0")/../../../scripts/call.sh" evaluate_policy training/rl_config.yml "test.json" "rm" do_sample=true "$@"
