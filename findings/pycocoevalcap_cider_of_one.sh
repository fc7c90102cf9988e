#!/usr/bin/env bash
# Expected: CIDEr-D of an answer is a number of that answer, and 10 if it is its own reference.
# Happens:  the rarity of an n-gram is counted in the references of the call itself: one answer
#           alone has 0, and so has a perfect one whose references are those of all others.
# Seen:     pycocoevalcap 1.2, numpy 2.4.6, 2026-11-30.
# Here:     CIDEr takes the rarity from a file of prompts that the config names, and refuses one
#           prompt (`Frequencies.of`, fgrlhf/metrics/cider.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
    "pycocoevalcap==1.2" "numpy==2.4.6"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

from pycocoevalcap.cider.cider import Cider

print(f"pycocoevalcap {version('pycocoevalcap')}, numpy {version('numpy')}")
CAT = "a small cat sat on the mat"
DOG = "one old dog ran through my garden"


def scores(**texts: str) -> list[float]:
    """CIDEr-D of each text, which is its own reference."""
    own = {name: [text] for name, text in texts.items()}
    _, found = Cider().compute_score(own, own)
    return [round(float(score), 6) for score in found]


alone = scores(a=CAT)
beside_another = scores(a=CAT, b=DOG)
beside_itself = scores(a=CAT, b=CAT)
print(f"a perfect answer alone: {alone}")
print(f"beside another one: {beside_another}")
print(f"two perfect answers with equal references: {beside_itself}")
if (alone, beside_another, beside_itself) != ([0.0], [10.0, 10.0], [0.0, 0.0]):
    sys.exit("changed: the scores are others")
PYTHON
