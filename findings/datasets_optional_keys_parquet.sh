#!/usr/bin/env bash
# Expected: A list of objects, of which some have one key more, becomes a list of structs in
#           Parquet, with null for the key.
# Happens:  The objects are of the type arrow.json. datasets decodes them, but pyarrow and pandas
#           give each object as a text.
# Seen:     datasets 5.2.0, pyarrow 26.0.1, pandas 3.1.1, 2026-11-29.
# Here:     The reader of Parquet files decodes columns of that type (`plain_rows`,
#           fgrlhf/data/read.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "datasets==5.2.0" "pyarrow==26.0.1" "pandas==3.1.1"

venv/bin/python - <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

import pandas
import pyarrow.parquet
from datasets import disable_progress_bars, load_dataset

disable_progress_bars()
print(*(f"{name} {version(name)}" for name in ("datasets", "pyarrow", "pandas")), sep=", ")
SPANS = [{"start": 0, "end": 3}, {"start": 4, "end": 9, "severity": "minor"}]
rows = [{"spans": [span]} for span in SPANS]
Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
data = load_dataset("json", data_files="rows.jsonl", split="train", cache_dir="cache")
data.to_parquet("rows.parquet")
back = load_dataset("parquet", data_files="rows.parquet", split="train", cache_dir="cache")
kind = pyarrow.parquet.read_schema("rows.parquet").field("spans").type
read = {
    "datasets": [row["spans"][0] for row in back],
    "pyarrow": [row["spans"][0] for row in pyarrow.parquet.read_table("rows.parquet").to_pylist()],
    "pandas": [spans[0] for spans in pandas.read_parquet("rows.parquet")["spans"]],
}
print(f"in the file: {kind}")
for name, spans in read.items():
    print(f"{name} reads: {spans}")
if read["datasets"] != SPANS:
    sys.exit("changed: datasets does not read the objects that it wrote")
for name in ("pyarrow", "pandas"):
    if not all(isinstance(span, str) for span in read[name]):
        sys.exit(f"changed: {name} reads objects, not texts")
PYTHON
