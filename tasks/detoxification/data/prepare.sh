#!/usr/bin/env bash
# Write prompts and labelled texts to $DATA_DIR from the downloaded files in $DATA_DIR/source (source=... for others).
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.detoxification.data.prepare source="$DATA_DIR/source" data_dir="$DATA_DIR" "$@"
