#!/usr/bin/env bash
# Expected: ROUGE counts a word as often as it stands there, so a summary that says everything four
#           times has a precision of .25.
# Happens:  Its words and pairs of words are sets. Repetition costs nothing in ROUGE-1 and ROUGE-L, and
#           little in ROUGE-2; texts with other counts of the same words are equal. As a reward, this
#           does not see a policy that repeats itself. `Rouge(exclusive=False)` counts all of them; the
#           README of the package does not name this key.
# Seen:     rouge 1.0.1, 2026-12-01.
# Here:     ROUGE is of rouge-score, which counts each occurrence (fgrlhf/metrics/overlap.py), and the
#           metric `repetition` is beside it.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check "rouge==1.0.1"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

from rouge import Rouge

print(f"rouge {version('rouge')}")
sentence = "the moon is small"
pairs = {
    "four times": (" ".join([sentence] * 4), sentence),
    "other counts": ("yes yes yes yes no", "yes no no no no"),
}
found = {}
for name, (answer, reference) in pairs.items():
    for exclusive in (True, False):
        scores = Rouge(exclusive=exclusive).get_scores(answer, reference)[0]
        found[name, exclusive] = {key: round(score["p"], 2) for key, score in scores.items()}
        print(f"{name}, exclusive={exclusive}: precision {found[name, exclusive]}")
if found["four times", False]["rouge-1"] != 0.25:
    sys.exit("changed: with exclusive=False, a sentence said four times has no precision of .25")
if found["four times", True] != {"rouge-1": 1.0, "rouge-2": 0.75, "rouge-l": 1.0}:
    sys.exit("changed: a sentence said four times has another precision")
if found["other counts", True]["rouge-1"] != 1.0 or found["other counts", False]["rouge-1"] != 0.4:
    sys.exit("changed: other counts of the same words have another precision of ROUGE-1")
PYTHON
