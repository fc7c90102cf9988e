#!/usr/bin/env bash
# Expected: A majority vote counts workers, and treats a tie the same whatever the order of the
#           table: at random with a seed, or as undecided.
# Happens:  It counts rows, so a worker whose answer is there twice outvotes another one. A tie goes
#           to the label that comes first in the table, so another order of the rows gives another
#           result.
# Seen:     crowd-kit 1.4.2, 2026-11-29.
# Here:     Votes on spans count each annotator once and need more than half (`combined`,
#           fgrlhf/data/votes.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "crowd-kit==1.4.2"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import pandas
from crowdkit.aggregation import MajorityVote

print(f"crowd-kit {version('crowd-kit')}")
A, B = ("answer 1", "ann", "right"), ("answer 1", "bob", "wrong")
for rows, expected in (([A, B], "right"), ([B, A], "wrong"), ([B, A, A], "right")):
    table = pandas.DataFrame(rows, columns=["task", "worker", "label"])
    label = MajorityVote().fit_predict(table)["answer 1"]
    print(f"{[(worker, given) for _, worker, given in rows]}: {label}")
    if label != expected:
        sys.exit(f"changed: the majority of these rows is {label}, not {expected}")
PYTHON
