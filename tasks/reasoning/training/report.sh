#!/usr/bin/env bash
# Summarise the evaluated policies, and write $OUTPUT_DIR/report.html.
source "$(dirname "$0")/../../../scripts/call.sh" write_report training/evaluate.sh "$@"
