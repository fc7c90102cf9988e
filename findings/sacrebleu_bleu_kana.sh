#!/usr/bin/env bash
# Expected: The tokenizer `zh` of BLEU separates the characters of Japanese as well as of Chinese, so
#           that equal sentences score 100.
# Happens:  It separates ideographs, not kana. A sentence in kana is one word, has no 4-grams, and
#           corpus BLEU of two equal ones is 0; a Chinese sentence of the same length scores 100.
# Seen:     sacrebleu 2.6.0, 2026-11-29.
# Here:     BLEU and TER of Japanese compare characters (fgrlhf/words.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "sacrebleu==2.6.0"

venv/bin/python -W ignore - <<'PYTHON'
import sys
from importlib.metadata import version

from sacrebleu.metrics import BLEU

print(f"sacrebleu {version('sacrebleu')}; output and reference are equal")
for name, text, expected in (
    ("Chinese", "他们下午在河边卖旧地图", 100.0),
    ("kana", "ゆうがたにかわべであるく", 0.0),
):
    score = BLEU(tokenize="zh").corpus_score([text], [[text]]).score
    print(f"{name}: BLEU {score:.1f}")
    if abs(score - expected) > 0.01:
        sys.exit(f"changed: BLEU of two equal texts in {name} is {score:.1f}, not {expected}")
PYTHON
