#!/usr/bin/env bash
# Fetch the published qa-feedback files (train, dev, test, train_1k, train_feedback, dev_feedback) into $DATA_DIR and
# verify them. Run it again to go on after an interruption. Extra arguments: key=value, e.g. base_url=https://...
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.qa_feedback.data.download data_dir="$DATA_DIR" "$@"
