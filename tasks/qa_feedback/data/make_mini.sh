#!/usr/bin/env bash
# Write the mini world to DATA_DIR (default outputs/qa_feedback/mini/data). Further arguments: key=value, e.g. seed=1 train=200
SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.qa_feedback.data.mini_world data_dir="$DATA_DIR" "$@"
