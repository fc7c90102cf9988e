#!/usr/bin/env bash
# Fetch GSM8K to $DATA_DIR/source and verify it. Run it again to continue.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.reasoning.data.download data_dir="$DATA_DIR/source" "$@"
