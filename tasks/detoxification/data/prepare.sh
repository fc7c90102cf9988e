#!/usr/bin/env bash
# Write prompts and labelled texts to $DATA_DIR from the downloaded files in $DATA_DIR/source (source=... for others).
# At paper scale every prompt counts, not only toxic ones (min_toxicity=0).
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/source" data/download.sh source "$@"
if [ "$SCALE" = paper ]; then set -- min_toxicity=0 "$@"; fi
python -m tasks.detoxification.data.prepare source="$DATA_DIR/source" data_dir="$DATA_DIR" "$@"
