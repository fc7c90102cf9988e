#!/usr/bin/env bash
# Compare algorithms over several seeds at mini scale, after `make demo`: $OUTPUT_DIR/compare/{summary.json,index.html}.
#   compare.sh [algorithms=ppo,grpo] [seeds=0,1,2] [steps=40]      --help lists the keys
export SCALE=mini
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$OUTPUT_DIR/sft" training/train_sft.sh base_dir "$@"
needs "$OUTPUT_DIR/baseline_rm" reward_modeling/train_baseline_rm.sh base_dir "$@"
python -m tasks.experiments compare base_dir="$OUTPUT_DIR" output_dir="$OUTPUT_DIR/compare" "$@"
