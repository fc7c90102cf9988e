#!/usr/bin/env bash
# `make setup`: the environment .venv with pinned packages and this package itself. Safe to repeat; a run that was cut
# off is continued, since .venv/.stamp is written last. PYTHON=... chooses the interpreter.
set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python; do
        if new_enough "$name"; then printf '%s\n' "$name"; return; fi
        if [ "$name" = "${PYTHON:-}" ]; then
            echo "error: PYTHON=$name is not a Python of version 3.11 or later." >&2
            return 2
        fi
    done
    echo "error: Python 3.11 or later is needed and none was found; python3 here is:" \
        "$(python3 --version 2>&1 || true). Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2
    return 2
}

if ! new_enough .venv/bin/python; then
    python="$(find_python)"
    echo "setup: making .venv with $("$python" --version)"
    if ! "$python" -m venv --clear .venv; then
        echo "error: $python cannot make a virtual environment (on Debian: apt-get install python3-venv)." >&2
        exit 2
    fi
fi

echo "setup: installing the pinned packages into .venv (minutes and about 2 GB the first time)"
if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'; then
    echo "error: pip could not install the packages (its message is above). Without a network nothing can be fetched;" \
        "otherwise run \`make setup\` again: what is already there is kept." >&2
    exit 2
fi
touch .venv/.stamp
echo "setup: done"
