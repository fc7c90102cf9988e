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
        _count_losses(row, len(feedback.steps), report)
        if not feedback.steps:
            report.drop(number, "steps", "no step was rated", "rows without a step")
            return None
        return from_steps(feedback)

    return read_objects(path, read, report)


def _count_losses(row: Mapping[str, Any], read: int, report: Report) -> None:
    """Count the completions of a row of PRM800K that are not among its first `read` steps."""
    label = row.get("label")
    steps = label.get("steps") if isinstance(label, Mapping) else None
    if not isinstance(steps, list):
        return
    goes_on = True
    for step in steps[:read]:
        is_chosen = step.get("chosen_completion") is not None
        is_human = not is_chosen and step.get("human_completion") is not None
        goes_on = is_chosen or is_human
        # the text of a human has no rating of its own
        lost = _completions(step) - (not is_human)
        if lost:
            report.losses["completions that the solution does not go on from"] += lost
    later = sum(map(_completions, steps[read:]))
    if later:
        name = "from the first step without a rating on" if goes_on else "after the last step"
        report.losses[f"completions {name}"] += later


def _completions(step: Any) -> int:
    completions = step.get("completions") if isinstance(step, Mapping) else None
    return len(completions) if isinstance(completions, list) else 0
