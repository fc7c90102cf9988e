#!/usr/bin/env bash
# Expected: A paired significance test of two systems with equal outputs gives a p-value of 1.
# Happens:  The differences of all draws are 0, and a draw counts only if it exceeds the observed
#           difference of 0. So p is the least possible, 1/(n + 1), and the command prints it with
#           a star.
# Seen:     sacrebleu 2.6.0, 2026-11-29.
# Here:     `seed_p_value` (fgrlhf/stats.py) returns 1 if all differences are zero.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "sacrebleu==2.6.0"

venv/bin/python - <<'PYTHON'
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

references = ["The ferry leaves at nine.", "Our cat sleeps on the stove.", "Six plums fell."]
outputs = ["The ferry goes at nine.", "Our cat sleeps near the stove.", "Six plums rolled."]
print(f"sacrebleu {version('sacrebleu')}")
for test, name in (("bs", "bootstrap"), ("ar", "approximate randomization")):
    systems = [("first", outputs), ("second", list(outputs))]
    metrics = {"BLEU": BLEU(references=[references])}
    _, results = PairedTest(systems, metrics, None, test_type=test, n_samples=1000)()
    first, second = results["BLEU"]
    scores = f"BLEU {first.score:.2f} and {second.score:.2f}"
    print(f"{name}, 1,000 draws: {scores}, p = {second.p_value}")
    if first.score != second.score:
        sys.exit("changed: equal outputs have different scores")
    if abs(second.p_value - 1 / 1001) > 1e-9:
        sys.exit(f"changed: two equal systems have p = {second.p_value}, not 1/1001")

for name, lines in (("ref", references), ("first", outputs), ("second", outputs)):
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
for option in ("--paired-bs", "--paired-ar"):
    command = ["venv/bin/sacrebleu", "ref", "-i", "first", "second", "-m", "bleu", option]
    shown = subprocess.run(
        [*command, "--format", "text"], check=True, capture_output=True, text=True
    ).stdout
    verdicts = [line.strip(" │") for line in shown.splitlines() if "(p = " in line]
    print(f"sacrebleu {option}: {verdicts}")
    if len(verdicts) != 1 or not verdicts[0].endswith("*"):
        sys.exit(f"changed: {option} prints no star for two equal systems")
PYTHON
