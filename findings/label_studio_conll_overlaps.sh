#!/usr/bin/env bash
# Expected: An export to CoNLL with overlapping marks, or with two labels on one mark, fails, warns,
#           or writes further columns.
# Happens:  Each token gets one label, without a message: a mark inside another one vanishes, of two
#           that overlap the later one loses its beginning, and of two labels the second is lost.
# Seen:     label-studio-sdk 2.1.2 (the converter of Label Studio 1.23.2), 2026-11-29.
# Here:     The importer reads the JSON export, which has all marks (`label_studio`,
#           fgrlhf/data/importers/label_studio.py).
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
CONFIG = """<View><Text name="text" value="$text"/><Labels name="error" toName="text">
<Label value="fact"/><Label value="style"/></Labels></View>"""
TEXT = "The big red dog barks."
for name, marks, expected in (
    ("inner", [(4, 15, ["fact"]), (8, 11, ["style"])], "O B-fact I-fact I-fact O O"),
    ("overlap", [(4, 11, ["fact"]), (8, 15, ["style"])], "O B-fact I-fact B-style O O"),
    ("two labels", [(4, 11, ["fact", "style"])], "O B-fact I-fact O O O"),
):
    results = []
    for start, end, labels in marks:
        value = {"start": start, "end": end, "text": TEXT[start:end], "labels": labels}
        results.append({"from_name": "error", "to_name": "text", "type": "labels", "value": value})
    annotation = {"completed_by": 1, "result": results}
    Path("tasks.json").write_text(
        json.dumps([{"id": 1, "data": {"text": TEXT}, "annotations": [annotation]}])
    )
    Converter(CONFIG, ".").convert("tasks.json", name, Format.CONLL2003, is_dir=False)
    lines = next(Path(name).glob("*.conll")).read_text().splitlines()[1:]
    tags = " ".join(line.split()[-1] for line in lines if line.strip())
    print(f"{name}, {marks}: {tags}")
    if tags != expected:
        sys.exit(f"changed: {name} gives {tags}")
PYTHON
