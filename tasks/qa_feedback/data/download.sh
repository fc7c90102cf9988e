#!/usr/bin/env bash
# Download the published qa-feedback files (train, dev, test, train_1k, train_feedback, dev_feedback) to $DATA_DIR and
# verify them. Run it again to continue after an interruption. Further arguments: key=value, e.g. base_url=https://...
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.qa_feedback.data.download data_dir="$DATA_DIR" "$@"
