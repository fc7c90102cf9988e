#!/usr/bin/env bash
# Expected: A column of JSON strings is a column of texts.
# Happens:  If every text of it has the form of a date, load_dataset makes it timestamps:
#           "2031-05-01" and "2031-05-01T00:00" become the same value, and the texts are lost. One
#           other text, or from_list, keeps them.
# Seen:     datasets 5.2.0, pyarrow 26.0.1, 2026-11-29.
# Here:     JSON lines are read without datasets (fgrlhf/data/read.py), so a response that is a
#           date stays a text.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "datasets==5.2.0" "pyarrow==26.0.1"

venv/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

from datasets import Dataset, disable_progress_bars, load_dataset

disable_progress_bars()
print(f"datasets {version('datasets')}, pyarrow {version('pyarrow')}")
for name, answers, expected in (
    ("dates", ["2031-05-01", "2031-05-01T00:00"], "timestamp[s]"),
    ("mixed", ["2031-05-01", "in May"], "string"),
    ("years", ["2031", "2032"], "string"),
):
    rows = [{"response": answer} for answer in answers]
    file = Path(f"{name}.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_dataset("json", data_files=str(file), split="train", cache_dir="cache")
    kind = loaded.features["response"].dtype
    print(f"{answers} as JSON lines: {kind}, {[str(answer) for answer in loaded['response']]}")
    if kind != expected:
        sys.exit(f"changed: {answers} as JSON lines are {kind}, not {expected}")
    listed = Dataset.from_list(rows)["response"]
    if list(listed) != answers:
        sys.exit(f"changed: from_list turns {answers} into {list(listed)}")
PYTHON
