#!/usr/bin/env bash
# Fetch RealToxicityPrompts and the posts with toxic spans to $DATA_DIR/source and verify them. Run it again to continue
# after an interruption.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.detoxification.data.download data_dir="$DATA_DIR/source" "$@"
