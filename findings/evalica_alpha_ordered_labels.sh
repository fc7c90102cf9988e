#!/usr/bin/env bash
# Expected: An ordinal alpha of the labels low, mid and high takes the order that the column states
#           (an ordered categorical of pandas), or refuses labels whose order it does not know.
# Happens:  The labels are sorted by the alphabet, high < low < mid, and these places are the values:
#           .40 instead of .89. `distance="interval"` does the same.
# Seen:     evalica 0.4.2, pandas 2.3.3, 2026-11-30.
# Here:     Ordinal alpha takes the order from `orders={helpful: [low, mid, high]}`; without it,
#           labels have a nominal alpha only (`fgrlhf data agreement`).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "evalica==0.4.2" "pandas==2.3.3"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import pandas
from evalica import alpha

print(f"evalica {version('evalica')}, pandas {version('pandas')}")
order = ["low", "mid", "high"]
ratings = pandas.DataFrame([["low", "high", "mid", "low", "high"], ["low", "mid", "mid", "low", "high"]])
stated = ratings.astype(pandas.CategoricalDtype(order, ordered=True))
places = ratings.apply(lambda column: column.map(order.index))
alphabet = ratings.apply(lambda column: column.map(sorted(order).index))
found = {}
for name, table in {"stated": stated, "places": places, "alphabet": alphabet}.items():
    found[name] = float(alpha(table, distance="ordinal").alpha)
print(", ".join(f"{name} {value:.2f}" for name, value in found.items()))
if not abs(found["places"] - 0.89) < 0.005:
    sys.exit("changed: the ordinal alpha of the places is no longer .89")
if abs(found["stated"] - found["alphabet"]) > 1e-9:
    sys.exit("changed: the order of the alphabet is no longer taken")
PYTHON
