#!/usr/bin/env bash
# Compare algorithms over several seeds at mini scale, after `make demo`: $OUTPUT_DIR/compare/{summary.json,index.html}.
#   compare.sh [algorithms=ppo,grpo] [seeds=0,1,2] [steps=40]      --help lists the keys
export SCALE=mini
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.experiments compare base_dir="$OUTPUT_DIR" output_dir="$OUTPUT_DIR/compare" "$@"
