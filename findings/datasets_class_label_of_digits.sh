#!/usr/bin/env bash
# Expected: ClassLabel gives a text the place of its name, and refuses a text that is no name.
# Happens:  A text of digits that is no name is taken as a place: of the grades 2 to 5, a "1" becomes
#           place 1, the name of which is "3". Places 0 to 3 exist, so "0" becomes "2", and only "6" is
#           refused. "-1" stays -1, which has no name. So a grade that the list of names lacks is
#           another grade after `cast_column`, or after loading with these features.
# Seen:     datasets 5.2.0, pyarrow 26.0.1, 2026-12-01.
# Here:     Labels are texts and have no places. Where their order counts, `orders=` gives it, and a label
#           that it lacks leaves the figure undefined and is named (`fgrlhf data agreement`).
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

from datasets import ClassLabel, Dataset, Features, disable_progress_bars, load_dataset

disable_progress_bars()
print(f"datasets {version('datasets')}, pyarrow {version('pyarrow')}")
grades = ClassLabel(names=["2", "3", "4", "5"])
given = ["2", "5", "1", "0"]
cast = Dataset.from_dict({"grade": given}).cast_column("grade", grades)
file = Path("grades.jsonl")
file.write_text("".join(json.dumps({"grade": grade}) + "\n" for grade in given))
loaded = load_dataset(
    "json",
    data_files=str(file),
    split="train",
    features=Features({"grade": grades}),
    cache_dir="cache",
)
for way, rows in (("cast_column", cast), ("load_dataset", loaded)):
    names = grades.int2str(list(rows["grade"]))
    print(f"{way}: {given} becomes {names}")
    if names != ["2", "5", "3", "2"]:
        sys.exit(f"changed: by {way}, the grades 2, 5, 1 and 0 are no longer 2, 5, 3 and 2")
if grades.str2int("-1") != -1:
    sys.exit("changed: -1 is no longer taken as it is")
for text in ("6", "good"):
    try:
        grades.str2int(text)
    except ValueError as error:
        print(f"{text} is refused: {error}")
    else:
        sys.exit(f"changed: {text} is no longer refused")
PYTHON
