#!/usr/bin/env bash
# Write the mini world in English to DATA_DIR (default outputs/qa_feedback/small/data), for a pretrained language model.
# Further arguments: key=value, e.g. seed=1 train=200
SCALE="${SCALE:-small}"
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.qa_feedback.data.mini_world data_dir="$DATA_DIR" language=english train=600 dev=60 test=100 \
    pretrain=0 sft=400 "$@"
