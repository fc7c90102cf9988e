#!/usr/bin/env bash
# Installs the annotation tools of `make tools-check`, pinned, each in an environment of its own in a folder: tools.sh FOLDER
# A tool that does not install leaves FOLDER/NAME.failed with the reason, and its tests are skipped with it.
set -euo pipefail
folder="${1:?the folder of the environments}"
python="${PYTHON:-python3.11}"
mkdir -p "$folder"

install() {  # NAME REQUIREMENT...
    local name="$1"; shift
    local stamp="$folder/$name/installed.txt"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$*" ]; then return; fi
    echo "tools: installing $* into $folder/$name"
    rm -rf "${folder:?}/$name" "$folder/$name.failed"
    if "$python" -m venv "$folder/$name" >"$folder/$name.log" 2>&1 \
        && "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >>"$folder/$name.log" 2>&1; then
        echo "$*" >"$stamp"
    else
        tail -n 1 "$folder/$name.log" >"$folder/$name.failed"
        echo "tools: $name does not install: $(cat "$folder/$name.failed") ($folder/$name.log)" >&2
    fi
}

install label_studio "label-studio==1.23.2" "label-studio-sdk==2.1.2"
# doccano 1.8.4 imports names that later releases of these packages no longer have
install doccano "doccano==1.8.4" "marshmallow<4" "numpy<2" "setuptools<81"
# the client of argilla 2.8.0 imports requests, which it does not list
install argilla "argilla==2.8.0" "requests"
install potato "potato-annotation==2.12.1"
