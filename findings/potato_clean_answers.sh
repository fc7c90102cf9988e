#!/usr/bin/env bash
# Expected: The export has a row for each annotator of an item, also if there was nothing to mark.
# Happens:  An annotator who saved an item without a mark has no row, just like one who never saw it.
#           If every item has a mark of somebody, nothing tells that others found it right.
# Seen:     potato-annotation 2.12.1, 2026-11-29.
# Here:     The importer gives `no error` only to rows that are there, so ask for an answer about the
#           whole text too (`potato`, fgrlhf/data/importers/potato.py).
set -euo pipefail

folder="$(mktemp -d)"
server=""
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "potato-annotation==2.12.1" "requests"

cat >config.yaml <<'YAML'
annotation_task_name: clean answers
task_dir: .
output_annotation_dir: out/
annotation_output_format: jsonl
data_files: [items.jsonl]
item_properties: {id_key: id, text_key: text}
user_config: {allow_all_users: true, users: []}
require_password: false
annotation_schemes:
  - {annotation_type: span, name: error, description: Errors, labels: [wrong]}
site_dir: default
YAML
echo '{"id": "1", "text": "The moon is cheese."}' >items.jsonl
port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
HOME="$folder" venv/bin/potato start config.yaml -p "$port" --host 127.0.0.1 >server.log 2>&1 &
server=$!

venv/bin/python - "$port" <<'PYTHON'
import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import requests

print(f"potato-annotation {version('potato-annotation')}")
url = f"http://127.0.0.1:{sys.argv[1]}"
for _ in range(240):
    try:
        if requests.get(f"{url}/health", timeout=5).ok:
            break
    except requests.RequestException:
        time.sleep(0.5)
else:
    sys.exit("the server does not start")
MARK = {"schema": "error", "name": "wrong", "title": "wrong", "value": "cheese"}
for user, marks in (("ann", [{**MARK, "start": 12, "end": 18}]), ("bob", [])):
    session = requests.Session()
    form = {"email": user, "pass": "password", "action": "signup"}
    session.post(f"{url}/register", data=form).raise_for_status()
    session.get(f"{url}/annotate").raise_for_status()
    answer = {"instance_id": "1", "annotations": {}, "span_annotations": marks}
    saved = session.post(f"{url}/updateinstance", json=answer)
    saved.raise_for_status()
    print(f"{user} saves {len(marks)} marks: {saved.json()['status']}")
command = [sys.executable, "-m", "potato.export", "-c", "config.yaml", "-f", "jsonl", "-o", "export"]
subprocess.run(command, check=True, capture_output=True)
lines = Path("export/annotations.jsonl").read_text().splitlines()
users = [json.loads(line)["user_id"] for line in lines]
print(f"users in the export: {users}")
if users != ["ann"]:
    sys.exit("changed: the export has other users than the one who marked something")
PYTHON
