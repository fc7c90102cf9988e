#!/usr/bin/env bash
# Summarise the evaluated policies, and write $OUTPUT_DIR/report.html.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
write_report training/evaluate.sh "$@"
