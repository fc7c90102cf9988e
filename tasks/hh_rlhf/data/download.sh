#!/usr/bin/env bash
# Fetch HH-RLHF to $DATA_DIR/source and verify it (subsets=[helpful-base] for others). Run it again to continue.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.hh_rlhf.data.download data_dir="$DATA_DIR/source" "$@"
