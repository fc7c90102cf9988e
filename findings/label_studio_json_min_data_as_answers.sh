#!/usr/bin/env bash
# Expected: JSON-MIN, the short form of an export, has under the name of a control what the annotator
#           answered, always in one form.
# Happens:  If the data of the task have a key with the name of a control, such as a prediction in a
#           table that was uploaded, it stands in the row of everybody who gave no answer, in the form
#           of an answer. CSV of the same converter moves it to another column. A single choice is a
#           text, two are an object.
# Seen:     label-studio-sdk 2.1.2 (the converter of Label Studio 1.23.2), 2026-11-30.
# Here:     A text under a control other than choices and lines is counted as data; docs/data_formats.md
#           says to rename one of the two (fgrlhf/data/importers/json_min.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "label-studio-sdk==2.1.2"

venv/bin/python - <<'PYTHON'
import csv
import json
import sys
from importlib.metadata import version
from pathlib import Path

from label_studio_sdk.converter import Converter
from label_studio_sdk.converter.converter import Format

print(f"label-studio-sdk {version('label-studio-sdk')}")
CONFIG = """<View><Text name="text" value="$text"/>
<Choices name="verdict" toName="text" choice="multiple">
<Choice value="true"/><Choice value="odd"/></Choices></View>"""
DATA = {"text": "The sun is small.", "verdict": "true"}  # a model's verdict, which nobody is shown


def annotation(number, *choices):
    result = {"from_name": "verdict", "to_name": "text", "type": "choices"}
    results = [{**result, "value": {"choices": list(choices)}}] if choices else []
    return {"id": number, "completed_by": number, "result": results}


given = [annotation(1, "odd"), annotation(2, "true", "odd"), annotation(3)]
Path("tasks.json").write_text(json.dumps([{"id": 1, "data": DATA, "annotations": given}]))
for form in (Format.JSON_MIN, Format.CSV):
    Converter(CONFIG, ".").convert("tasks.json", form.name, form, is_dir=False)
(short,) = Path("JSON_MIN").glob("*.json")
answers = {row["annotator"]: row["verdict"] for row in json.loads(short.read_text())}
for who, answer in answers.items():
    print(f"JSON-MIN, verdict of annotator {who}: {answer!r}")
(table,) = Path("CSV").glob("*.csv")
rows = list(csv.DictReader(table.read_text().splitlines()))
print(f"CSV, verdict of annotator 3: {rows[2]['verdict']!r}, columns {', '.join(rows[2])}")
if answers[3] != "true":
    sys.exit("changed: the task's own verdict is no longer in the row of who gave none")
if rows[2]["verdict"]:
    sys.exit("changed: CSV has a verdict of who gave none")
if answers[1] != "odd" or answers[2] != {"choices": ["true", "odd"]}:
    sys.exit("changed: one choice and two choices have other forms")
PYTHON
