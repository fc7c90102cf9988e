#!/usr/bin/env bash
# Expected: Two processes of torchrun train together, as they do on two GPUs.
# Happens:  Without a GPU, Accelerator() ignores torchrun unless ACCELERATE_USE_CPU is set: each
#           process counts one process and is the main one, so both train alone and write the same
#           files.
# Seen:     accelerate 1.15.0, torch 2.13.0, 2026-11-29, Linux, without a GPU.
# Here:     The launcher sets the variable (fgrlhf/cli/torchrun.py), and a process that would train
#           alone among several is refused (`check_launcher`, fgrlhf/runs/distributed.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "accelerate==1.15.0" "torch==2.13.0"

venv/bin/python - <<'PYTHON'
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

print(f"accelerate {version('accelerate')}, torch {version('torch')}")
Path("count.py").write_text(
    "from accelerate import Accelerator\n"
    "a = Accelerator()\n"
    "print(f'{a.num_processes} processes, main: {a.is_main_process}\\n', end='', flush=True)\n"
)
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "count.py"]
alone = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
alone |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
for title, environment, expected in (
    ("without ACCELERATE_USE_CPU", alone, ["1 processes, main: True"] * 2),
    (
        "with ACCELERATE_USE_CPU=true",
        alone | {"ACCELERATE_USE_CPU": "true"},
        ["2 processes, main: False", "2 processes, main: True"],
    ),
):
    run = subprocess.run(
        [sys.executable, *LAUNCH], env=environment, check=True, capture_output=True, text=True
    )
    lines = sorted(run.stdout.splitlines())
    print(f"{title}: {lines}")
    if lines != expected:
        sys.exit(f"changed: {title}, the two processes say {lines}, not {expected}")
PYTHON
