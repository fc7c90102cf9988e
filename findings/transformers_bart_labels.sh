#!/usr/bin/env bash
# Expected: A config that is saved and loaded is the same.
# Happens:  BartConfig(num_labels=2) has 3 labels after saving and loading: two labels are the
#           default of the base class, so they are not written, and BART's own default is 3. The saved
#           classifier of two labels can then not be loaded. T5 keeps its 2.
# Seen:     transformers 5.23.0, 2026-11-29.
# Here:     A size that differs from the config is refused with the name of the tensor and both sizes
#           (fgrlhf/models/loading.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "transformers==5.23.0" "torch==2.13.0"

venv/bin/python -W ignore - <<'PYTHON'
import sys
from importlib.metadata import version

from transformers import AutoConfig, BartConfig, T5Config

print(f"transformers {version('transformers')}; configs with two labels")
for name, config, expected in (("BART", BartConfig, 3), ("T5", T5Config, 2)):
    config(num_labels=2).save_pretrained(name)
    labels = AutoConfig.from_pretrained(name).num_labels
    print(f"{name}: {labels} labels after saving and loading")
    if labels != expected:
        sys.exit(f"changed: {name} has {labels} labels, not {expected}")
PYTHON
