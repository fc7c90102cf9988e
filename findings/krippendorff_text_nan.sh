#!/usr/bin/env bash
# Expected: The label "nan" of two annotators who agree is a label like any other.
# Happens:  In a table of texts it is a missing answer. The units that have it drop out, and alpha
#           changes; with another name for the same label it does not.
# Seen:     krippendorff 0.9.0, 2026-11-29.
# Here:     A missing answer is a unit without a value, and every text is a label
#           (fgrlhf/data/agreement/alpha.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "krippendorff==0.9.0"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import krippendorff


def alpha(label: str) -> float:
    """Two annotators and six units; the label is the answer of both in the last three."""
    first = ["red", "blue", "red", label, label, label]
    second = ["red", "blue", "blue", label, label, label]
    return krippendorff.alpha(reliability_data=[first, second], level_of_measurement="nominal")


print(f"krippendorff {version('krippendorff')}")
for label, expected in (("nil", 34 / 45), ("nan", 4 / 9)):
    value = alpha(label)
    print(f"alpha with the label {label!r}: {value:.3f}")
    if abs(value - expected) > 0.001:
        sys.exit(f"changed: alpha with the label {label!r} is {value:.3f}, not {expected:.3f}")
PYTHON
