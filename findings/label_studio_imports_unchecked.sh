#!/usr/bin/env bash
# Expected: An import of annotations checks them against the project, as it checks the keys of the
#           data, and imported annotations are those of their annotators, no more.
# Happens:  Results of a control or text that the project does not have, of another type than their
#           control's, and with ends behind the text are taken. Unless the file says
#           `"ground_truth": false`, every imported annotation is marked as the ground truth.
# Seen:     label-studio 1.23.2, 2026-11-29.
# Here:     The export fits tasks to a project's configuration (`fitted`,
#           fgrlhf/data/label_studio_project.py) and says that annotations are no ground truth.
set -euo pipefail

folder="$(mktemp -d)"
server=""
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "label-studio==1.23.2" "label-studio-sdk==2.1.2"

export HOME="$folder" LABEL_STUDIO_BASE_DATA_DIR="$folder/data" COLLECT_ANALYTICS=false SENTRY_DSN="" FRONTEND_SENTRY_DSN=""
export LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN=true TOKEN=0123456789012345678901234567890123456789
PORT="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
export PORT
venv/bin/label-studio start --no-browser --port "$PORT" --internal-host 127.0.0.1 \
    --username a@example.com --password long-password-1 --user-token "$TOKEN" >server.log 2>&1 &
server=$!

venv/bin/python - <<'PYTHON'
import os
import sys
import time
from importlib.metadata import version

import requests

print(f"label-studio {version('label-studio')}")
url = f"http://127.0.0.1:{os.environ['PORT']}"
session = requests.Session()
session.headers["Authorization"] = f"Token {os.environ['TOKEN']}"
for _ in range(600):
    try:
        if session.get(f"{url}/api/version", timeout=5).ok:
            break
    except requests.RequestException:
        time.sleep(0.5)
else:
    sys.exit("the server does not start")
CONFIG = """<View><Text name="text" value="$text"/><Rating name="quality" toName="text"/>
<Labels name="error" toName="text"><Label value="wrong"/></Labels></View>"""
project = session.post(f"{url}/api/projects", json={"title": "check", "label_config": CONFIG})
address = f"{url}/api/projects/{project.json()['id']}"
TEXT = "The moon is cheese."
RESULTS = {
    "unknown control": ("mistake", "text", "labels", {"start": 4, "end": 8, "labels": ["wrong"]}),
    "unknown text": ("error", "answer", "labels", {"start": 4, "end": 8, "labels": ["wrong"]}),
    "another type": ("quality", "text", "number", {"number": 4.5}),
    "end behind it": ("error", "text", "labels", {"start": 4, "end": 99, "labels": ["wrong"]}),
}
for name, (control, text, kind, value) in RESULTS.items():
    result = {"id": "r", "from_name": control, "to_name": text, "type": kind, "value": value}
    task = {"data": {"text": TEXT}, "annotations": [{"completed_by": 1, "result": [result]}]}
    status = session.post(f"{address}/import", json=[task]).status_code
    print(f"{name}: {status}")
    if status != 201:
        sys.exit(f"changed: a result with {name} is refused")
status = session.post(f"{address}/import", json=[{"data": {"answer": TEXT}}]).status_code
print(f"data without the key of the text: {status}")
tasks = session.get(f"{address}/export", params={"exportType": "JSON"}).json()
annotations = [annotation for task in tasks for annotation in task["annotations"]]
marked = [annotation["ground_truth"] for annotation in annotations]
kept = {name: (r["from_name"], r["to_name"], r["type"], r["value"]) for name, r in zip(
    RESULTS, (annotation["result"][0] for annotation in sorted(annotations, key=lambda a: a["id"]))
)}
print(f"ground_truth: {marked}")
if status != 400 or kept != RESULTS:
    sys.exit("changed: the export differs from what was loaded, or data are not checked")
if not all(marked):
    sys.exit("changed: imported annotations are no ground truth by default")
PYTHON
