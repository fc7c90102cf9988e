#!/usr/bin/env bash
# Expected: Bradley-Terry scores of systems of which one wins every comparison rank it first, or the
#           call says that its score is infinite. The others are ranked by their own comparisons.
# Happens:  All systems have the same score, 1e-6, also those that beat each other some of the time.
#           A system that loses every comparison does the same to the others. There is no warning.
# Seen:     evalica 0.4.2, 2026-11-30.
# Here:     Policies are compared two by two, by shares with intervals that stay valid at 0 and 1
#           (`fgrlhf/stats.py`), never by such scores.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "evalica==0.4.2"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

from evalica import Winner, bradley_terry

print(f"evalica {version('evalica')}")


def scores(games):
    """The scores of [(one system, the other, how often the first wins, how often the second)]."""
    rows = [(x, y, Winner.X) for x, y, wins, _ in games for _ in range(wins)]
    rows += [(x, y, Winner.Y) for x, y, _, wins in games for _ in range(wins)]
    return bradley_terry(*map(list, zip(*rows))).scores.to_dict()


usual = scores([("a", "b", 4, 1), ("b", "c", 4, 1)])
print(f"a beats b 4:1, b beats c 4:1: {usual}")
if not usual["a"] > usual["b"] > usual["c"]:
    sys.exit("changed: systems that win most comparisons are no longer ranked by them")
for name, games in {
    "a beats b 5:0, b beats c 4:1": [("a", "b", 5, 0), ("b", "c", 4, 1)],
    "a beats b 4:1, b beats c 5:0": [("a", "b", 4, 1), ("b", "c", 5, 0)],
}.items():
    found = scores(games)
    print(f"{name}: {found}")
    if len(set(found.values())) != 1:
        sys.exit(f"changed: the scores of {name} differ now")
PYTHON
