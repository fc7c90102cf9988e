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
    is_function = '[ "${2:-}" = fgrlhf.cli.stage_script ]'
    real = f'PYTHONPATH="{ROOT}" exec {sys.executable} "$@"'
    program(folder, "python", f"if {is_function}; then {real}; fi\n{text}")
