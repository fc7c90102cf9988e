#!/usr/bin/env bash
# Write $OUTPUT_DIR/report.html: the results of all finished stages in one self-contained file.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$OUTPUT_DIR" training/train_sft.sh "" "$@"
python -m fgrlhf.report.page "$OUTPUT_DIR" task=tasks.qa_feedback "$@"
