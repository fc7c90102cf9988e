#!/usr/bin/env bash
# Sample solutions of the test problems and rate them.
#   evaluate.sh policy=$OUTPUT_DIR/process/best name=process [num_samples=4 ...]
source "$(dirname "$0")/../../../scripts/call.sh" evaluate_policy training/process_config.yml "test.json" "prm" do_sample=true "$@"
