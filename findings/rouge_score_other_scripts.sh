#!/usr/bin/env bash
# Expected: A text has a ROUGE of 1 against itself.
# Happens:  The tokenizer keeps a to z and 0 to 9 only. Russian, Greek or Chinese has no words, so
#           equal texts score 0; with a digit in them, different texts score 1.
# Seen:     rouge-score 0.1.2, 2026-11-29.
# Here:     The metrics take words of any script (`unicode_words`, fgrlhf/words.py),
#           equal to rouge-score in ASCII.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "rouge-score==0.1.2"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

from rouge_score.rouge_scorer import RougeScorer

scorer = RougeScorer(["rouge1", "rougeL", "rougeLsum"])
print(f"rouge-score {version('rouge-score')}")
for output, reference, expected in (
    ("река течёт на юг", "река течёт на юг", 0.0),
    ("το τρένο φεύγει νωρίς", "το τρένο φεύγει νωρίς", 0.0),
    ("火车开得很早", "火车开得很早", 0.0),
    ("поезд номер 7", "дом номер 7", 1.0),
    ("the river flows south", "the river flows south", 1.0),
):
    scores = {name: score.fmeasure for name, score in scorer.score(reference, output).items()}
    print(f"{output!r} against {reference!r}: {scores}")
    if any(score != expected for score in scores.values()):
        sys.exit(f"changed: {output!r} against {reference!r} scores {scores}, not {expected}")
PYTHON
