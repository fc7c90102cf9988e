#!/usr/bin/env bash
# Summarise the evaluated policies, and write $OUTPUT_DIR/report.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$OUTPUT_DIR/eval" training/evaluate.sh "" "$@"
python -m fgrlhf.pipeline.summary "tasks.$TASK" output_dir="$OUTPUT_DIR" scale="$SCALE"
python -m fgrlhf.report.page "$OUTPUT_DIR" task="tasks.$TASK" "$@"
