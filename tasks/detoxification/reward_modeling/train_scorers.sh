#!/usr/bin/env bash
# Train the scorer that rewards and the judge, on disjoint texts with labels of different people.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/rated_texts.json" "" data_dir "$@"
python -m tasks.detoxification.scorers data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" "$@"
