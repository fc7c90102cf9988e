"""Step-by-step solutions as judgements. The row format `steps` reads them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fgrlhf.data.formats import STEPS
from fgrlhf.data.importers.files import read_objects
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import JudgedResponse, from_steps
from fgrlhf.data.rows import Columns, Row
from fgrlhf.data.shapes import AFTER_MARKS, text_after_marks

PRM800K_COLUMNS = {"prompt": "question.problem", "steps": "label.steps"}  # a task's word


def prm800k(path: str | Path, report: Report) -> list[JudgedResponse]:
    """PRM800K: several rated completions for every step, of which one is read.

    docs/data_formats.md (Steps) says which one. The others are counted as lost. `labeler` is the
    annotator.
    """
    return _read(path, PRM800K_COLUMNS, report)


def stepwise(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Math-Shepherd and TRL's stepwise supervision (docs/data_formats.md, Steps)."""
    return _read(path, {}, report)


def _read(path: str | Path, columns: Columns, report: Report) -> list[JudgedResponse]:
    def read(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
        feedback = STEPS.parse(Row(row, columns), number)
        _count_losses(row, len(feedback.steps), report)
        if not feedback.steps:
            report.drop(number, "steps", "no step was rated", "rows without a step")
            return None
        judged = from_steps(feedback)
        labeler = row.get("labeler")
        if columns is not PRM800K_COLUMNS or not isinstance(labeler, str) or not labeler.strip():
            return judged
        judgements = [replace(judgement, annotator=labeler) for judgement in judged.judgements]
        return replace(judged, judgements=tuple(judgements))

    return read_objects(path, read, report)


def _count_losses(row: Mapping[str, Any], n_read: int, report: Report) -> None:
    """Count the completions of PRM800K and the texts of Math-Shepherd that are not read.

    Args:
      n_read: how many steps were read. The solution ends after them.
    """
    label = row.get("label")
    marked = row.get("input")
    is_marked = row.get("steps") is None and isinstance(label, str) and isinstance(marked, str)
    if is_marked and text_after_marks(str(marked)):
        report.losses[AFTER_MARKS] += 1
    steps = label.get("steps") if isinstance(label, Mapping) else None
    if not isinstance(steps, list):
        return
    goes_on = True
    for step in steps[:n_read]:
        is_chosen = step.get("chosen_completion") is not None
        is_by_human = not is_chosen and step.get("human_completion") is not None
        goes_on = is_chosen or is_by_human
        lost = _count_completions(step)
        if not is_by_human:  # what a human wrote is not one of the completions
            lost -= 1
        if lost:
            report.losses["completions that the solution does not go on from"] += lost
    later = sum(_count_completions(step) for step in steps[n_read:])
    if later and goes_on:
        report.losses["completions from the first step without a rating on"] += later
    elif later:
        report.losses["completions after the last step"] += later


def _count_completions(step: Any) -> int:
    """The number of completions of a step, which may be malformed if it was not read."""
    completions = step.get("completions") if isinstance(step, Mapping) else None
    return len(completions) if isinstance(completions, list) else 0
