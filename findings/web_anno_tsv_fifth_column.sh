#!/usr/bin/env bash
# Expected: A reader of WebAnno TSV, the export of INCEpTION, takes the columns that the head of the file
#           names, or refuses a layer that it does not know.
# Happens:  The label is the fifth column, whatever it holds. Of the layer `category|severity` it is the
#           severity, of `severity|category` the category. Of a layer with one feature, that column is
#           empty (the tab that ends each line of an export): each token is a mark with the label "",
#           also those without a mark, and the real marks and labels are gone. No message.
# Seen:     web-anno-tsv 0.0.1, 2026-12-01.
# Here:     WebAnno TSV is refused by name, with the advice to export UIMA CAS
#           (fgrlhf/data/importers/registry.py), whose features have names.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check "web-anno-tsv==0.0.1"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

from web_anno_tsv import open_web_anno_tsv

print(f"web-anno-tsv {version('web-anno-tsv')}")


def labels(features, cells):
    """The text and label of each mark in a file in which the tokens "very old" have these cells."""
    tokens = {"It": (0, 2), "is": (3, 5), "very": (6, 10), "old": (11, 14)}
    lines = ["#FORMAT=WebAnno TSV 3.3", f"#T_SP=webanno.custom.Error|{features}", "", ""]
    lines.append("#Text=It is very old")
    for number, (token, (start, end)) in enumerate(tokens.items(), 1):
        values = cells if start >= 6 else ["_"] * len(cells)
        lines.append("\t".join([f"1-{number}", f"{start}-{end}", token, *values, ""]))
    file = Path("marks.tsv")
    file.write_text("\n".join(lines) + "\n")
    with open_web_anno_tsv(str(file)) as sentences:
        found = [(mark.text, mark.label) for one in sentences for mark in one.annotations]
    print(f"{features}: {found}")
    return found


if labels("identifier|value", ["*[1]", "omission[1]"]) != [("very old", "omission")]:
    sys.exit("changed: the layer of named entities is no longer read")
if labels("category|severity", ["omission[1]", "minor[1]"]) != [("very old", "minor")]:
    sys.exit("changed: of category and severity, the label is no longer the severity")
if labels("severity|category", ["minor[1]", "omission[1]"]) != [("very old", "omission")]:
    sys.exit("changed: of severity and category, the label is no longer the category")
if labels("category", ["omission[1]"]) != [(word, "") for word in ("It", "is", "very", "old")]:
    sys.exit("changed: of one feature, each token is no longer a mark with an empty label")
PYTHON
