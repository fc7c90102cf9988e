#!/usr/bin/env bash
# Expected: [0, 5) and [5, 11) share no character, so one is missed and the other is spurious.
# Happens:  They count as overlapping: a partial match, and a full match (F1 of 1) under ent_type.
#           With a gap of one character they do not match.
# Seen:     nervaluate 1.2.1, 2026-11-29.
# Here:     Spans match only if they share a character (`overlap`, fgrlhf/data/agreement/matching.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "nervaluate==1.2.1"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

from nervaluate import Evaluator

print(f"nervaluate {version('nervaluate')}; the reference is [0, 5)")
reference = [[{"label": "error", "start": 0, "end": 5}]]
for start, expected in ((5, {"ent_type": 1.0, "partial": 0.5}), (6, {"ent_type": 0, "partial": 0})):
    prediction = [[{"label": "error", "start": start, "end": 11}]]
    results = Evaluator(reference, prediction, tags=["error"], loader="dict").evaluate()["overall"]
    f1 = {name: results[name].f1 for name in expected}
    print(f"predicted [{start}, 11): F1 {f1}")
    if f1 != expected:
        sys.exit(f"changed: F1 of [{start}, 11) is {f1}, not {expected}")
PYTHON
