"""Step-by-step solutions as judgements: the reader is that of the row format `steps`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fgrlhf.data.formats import STEPS
from fgrlhf.data.importers.files import read_objects
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import JudgedResponse, from_steps
from fgrlhf.data.rows import Columns, Row

PRM800K_COLUMNS = {"prompt": "question.problem", "steps": "label.steps"}  # a task's word


def prm800k(path: str | Path, report: Report) -> list[JudgedResponse]:
    """PRM800K: rated completions for every step. docs/data_formats.md says which one is read."""
    return _read(path, PRM800K_COLUMNS, report)


def stepwise(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Math-Shepherd and TRL's stepwise supervision, as the row format `steps` reads them."""
    return _read(path, {}, report)


def _read(path: str | Path, columns: Columns, report: Report) -> list[JudgedResponse]:
    def read(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
        feedback = STEPS.parse(Row(row, columns), number)
        if not feedback.steps:
            report.drop(number, "steps", "no step was rated", "rows without a step")
            return None
        stated = _stated(row)
        if stated > len(feedback.steps):
            report.losses["completions that the solution does not go on from"] += stated - len(
                feedback.steps
            )
        return from_steps(feedback)

    return read_objects(path, read, report)


def _stated(row: Mapping[str, Any]) -> int:
    """How many completions a row of PRM800K has; 0 for other rows."""
    label = row.get("label")
    steps = label.get("steps") if isinstance(label, Mapping) else None
    if not isinstance(steps, list):
        return 0
    return sum(len(step.get("completions") or []) for step in steps if isinstance(step, Mapping))
