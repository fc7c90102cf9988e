#!/usr/bin/env bash
# Expected: TER(asian_support=True) separates Chinese characters. One wrong character of eleven
#           costs 9.
# Happens:  Without normalized=True the option does nothing: the sentence is one word, and TER is
#           100. With both options TER is 9.09, but a Thai sentence is one word even then.
# Seen:     sacrebleu 2.6.0, 2026-11-29.
# Here:     The tokenizer `asian` of TER sets both options, and Thai is compared by characters
#           (fgrlhf/words.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "sacrebleu==2.6.0"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

from sacrebleu.metrics import TER

CHINESE = ("他们下午在河边卖旧地图", "他们上午在河边卖旧地图")
THAI = ("แม่ของเขาขายผลไม้ที่ตลาด", "แม่ของเราขายผลไม้ที่ตลาด")
print(f"sacrebleu {version('sacrebleu')}; one character of each sentence differs")
for name, (output, reference), options, expected in (
    ("Chinese", CHINESE, {}, 100.0),
    ("Chinese", CHINESE, {"asian_support": True}, 100.0),
    ("Chinese", CHINESE, {"asian_support": True, "normalized": True}, 100 / 11),
    ("Thai", THAI, {"asian_support": True, "normalized": True}, 100.0),
):
    score = TER(**options).corpus_score([output], [[reference]]).score
    print(f"{name}, {options}: TER {score:.2f}")
    if abs(score - expected) > 0.01:
        sys.exit(f"changed: TER of {name} with {options} is {score:.2f}, not {expected:.2f}")
PYTHON
