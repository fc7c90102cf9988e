#!/usr/bin/env bash
# Report on whatever the stages have written to $OUTPUT_DIR so far: $OUTPUT_DIR/report.html, one self-contained file.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m fgrlhf.report.page "$OUTPUT_DIR" "$@"
