#!/usr/bin/env bash
# Expected: A p-value that is missing (NaN: an undefined test) leaves the corrected p-values of the
#           others as they are, as with Holm or Bonferroni.
# Happens:  With fdr_bh and fdr_by every corrected p-value is NaN, while the decisions beside them
#           still reject some.
# Seen:     statsmodels 0.15.0, 2026-11-29.
# Here:     `holm` (fgrlhf/stats.py) is the only correction, and refuses what is not a number from
#           0 to 1.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "statsmodels==0.15.0"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import numpy as np
from statsmodels.stats.multitest import multipletests

P_VALUES = [0.001, 0.02, float("nan"), 0.5]
print(f"statsmodels {version('statsmodels')}; p-values {P_VALUES}")
for method, missing in (("holm", 1), ("bonferroni", 1), ("fdr_bh", 4), ("fdr_by", 4)):
    rejected, corrected = multipletests(P_VALUES, method=method)[:2]
    print(f"{method}: corrected {corrected.tolist()}, rejected {rejected.tolist()}")
    if np.isnan(corrected).sum() != missing or not rejected[0]:
        sys.exit(f"changed: {method} does not give {missing} NaN beside a rejected first test")
PYTHON
