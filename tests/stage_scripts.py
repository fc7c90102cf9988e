"""Stage scripts whose programs only print or record their arguments."""

import stat
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def program(folder: Path, name: str, text: str) -> None:
    """Write an executable script of bash."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def fake_python(folder: Path, text: str) -> None:
    """Write a program `python` that runs `text`. The functions of stage scripts are real."""
    functions = "fgrlhf.cli.stage_script | tasks.*.experiments | tasks.text_stages"
    real = f'PYTHONPATH="{ROOT}" exec {sys.executable} "$@"'
    program(folder, "python", f'case "${{2:-}}" in {functions}) {real} ;; esac\n{text}')
