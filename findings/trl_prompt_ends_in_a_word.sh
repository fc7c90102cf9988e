#!/usr/bin/env bash
# Expected: The prompt of a pair without a prompt (HH-RLHF's form) ends where the turn of the model
#           begins, or at least between two words.
# Happens:  It ends at the first character that differs. Of the answers "It is." and "I can." the
#           prompt takes "I", and "t is." is learnt as what follows it; if one answer continues the
#           other, only the last letter of the shorter one is learnt.
# Seen:     trl 1.16.0, 2026-11-30: `extract_prompt`, which DPOTrainer and KTOTrainer call for such rows.
# Here:     Such pairs are split behind the last word that is whole in both texts, and counted
#           (docs/data_formats.md).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "trl==1.16.0" "transformers==5.23.0" "torch==2.13.0"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

from trl import extract_prompt

print(f"trl {version('trl')}")
question = "\n\nHuman: Where is it?\n\nAssistant: "
for chosen, rejected, expected in (
    ("It is here.", "I can not say.", ("I", "t is here.", " can not say.")),
    ("In Paris", "In Paris, I think", ("In Pari", "s", "s, I think")),
):
    row = extract_prompt({"chosen": question + chosen, "rejected": question + rejected})
    found = (row["prompt"].removeprefix(question), row["chosen"], row["rejected"])
    print(f"{chosen!r} and {rejected!r}: the prompt takes {found[0]!r}, the answers are {found[1:]}")
    if found != expected:
        sys.exit(f"changed: expected {expected}")
PYTHON
