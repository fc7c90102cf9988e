#!/usr/bin/env bash
# Expected: The sentencizer of a blank pipeline gives one sentence per item of a numbered list, and
#           knows the Chinese full stop.
# Happens:  The number "2." is a sentence of its own; bullets without stops are one sentence; and
#           Chinese without spaces is one sentence in the English pipeline, as the tokenizer leaves
#           its full stops inside words.
# Seen:     spacy 3.8.18, 2026-11-29.
# Here:     The default segmenter `multilingual` (fgrlhf/segmentation.py) has rules for lists and
#           for the marks of each script.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "spacy==3.8.18"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import spacy

print(f"spacy {version('spacy')}")
CHINESE = "门关了。窗还开着！谁来过？"
for language, text, expected in (
    ("en", "1. Boil water.\n2. Add rice.", ["1.", "Boil water.", "2.", "Add rice."]),
    ("en", "- red cups\n- blue plates", ["- red cups\n- blue plates"]),
    ("en", CHINESE, [CHINESE]),
    ("zh", CHINESE, ["门关了。", "窗还开着！", "谁来过？"]),
):
    pipeline = spacy.blank(language)
    pipeline.add_pipe("sentencizer")
    sentences = [sentence.text.strip() for sentence in pipeline(text).sents]
    print(f"{language}, {text!r}: {sentences}")
    if sentences != expected:
        sys.exit(f"changed: {text!r} has the sentences {sentences}, not {expected}")
PYTHON
