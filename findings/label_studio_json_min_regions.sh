#!/usr/bin/env bash
# Expected: JSON-MIN, the short form of an export, has the answers of each region with its place, as
#           it does for labels.
# Happens:  Choices that were given for regions become a list of texts. Which region each belongs to
#           is lost, and with one region it looks like an answer about the whole text.
# Seen:     label-studio-sdk 2.1.2 (the converter of Label Studio 1.23.2), 2026-11-29.
# Here:     The importer counts such answers as lost, if the project's configuration tells that they are
#           about marks (fgrlhf/data/importers/json_min.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "label-studio-sdk==2.1.2"

venv/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

from label_studio_sdk.converter import Converter
from label_studio_sdk.converter.converter import Format

print(f"label-studio-sdk {version('label-studio-sdk')}")
CONFIG = """<View><Text name="text" value="$text"/>
<Labels name="error" toName="text"><Label value="wrong"/></Labels>
<Choices name="severity" toName="text" perRegion="true">
<Choice value="minor"/><Choice value="major"/></Choices></View>"""
TEXT = "The sun is small and cold."
results = []
for number, (start, end, severity) in enumerate([(11, 16, "major"), (21, 25, "minor")]):
    place = {"start": start, "end": end, "text": TEXT[start:end]}
    region = {"id": str(number), "to_name": "text"}
    labels = {"labels": ["wrong"], **place}
    choices = {"choices": [severity], **place}
    results.append({**region, "from_name": "error", "type": "labels", "value": labels})
    results.append({**region, "from_name": "severity", "type": "choices", "value": choices})
task = {"id": 1, "data": {"text": TEXT}, "annotations": [{"completed_by": 1, "result": results}]}
Path("tasks.json").write_text(json.dumps([task]))
Converter(CONFIG, ".").convert("tasks.json", "out", Format.JSON_MIN, is_dir=False)
(row,) = json.loads(next(Path("out").glob("*.json")).read_text())
print(f"error:    {row['error']}")
print(f"severity: {row['severity']}")
if not all("start" in region for region in row["error"]):
    sys.exit("changed: the labels have no places")
if row["severity"] != ["major", "minor"]:
    sys.exit("changed: the choices of regions are not a list of texts")
PYTHON
