#!/usr/bin/env bash
# Write prompts, pairs and demonstrations to $DATA_DIR from $DATA_DIR/source (source=... for others, subset_size=2000).
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/source" data/download.sh source "$@"
python -m tasks.hh_rlhf.data.prepare source="$DATA_DIR/source" data_dir="$DATA_DIR" "$@"
