#!/usr/bin/env bash
# `make setup`: create .venv with the pinned packages and this package. Safe to repeat: after an interruption, run it
# again; .venv/.stamp is written last. PYTHON=... selects the interpreter.
set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python; do
        if new_enough "$name"; then printf '%s\n' "$name"; return; fi
        if [ "$name" = "${PYTHON:-}" ]; then
            echo "error: PYTHON=$name is not Python 3.11 or later. Set PYTHON to another one." >&2
            return 2
        fi
    done
    echo "error: Python 3.11 or later is needed and none was found; python3 here is:" \
        "$(python3 --version 2>&1 || true). Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2
    return 2
}

if ! new_enough .venv/bin/python; then
    python="$(find_python)"
    echo "setup: creating .venv with $("$python" --version)"
    if ! "$python" -m venv --clear .venv; then
        echo "error: $python cannot create a virtual environment. On Debian, run: apt-get install python3-venv" >&2
        exit 2
    fi
fi

echo "setup: installing the pinned packages into .venv (minutes and at least 2 GB the first time)"
if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'; then
    echo "error: pip could not install the packages; its message is above. Check the network connection, then run" \
        "\`make setup\` again: installed packages are kept." >&2
    exit 2
fi
touch .venv/.stamp
echo "setup: done"
