"""Step-by-step solutions as judgements. The row format `steps` reads them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import shorten
from fgrlhf.base.records import LeftOutError, check_text
from fgrlhf.data.formats import STEPS
from fgrlhf.data.importers.files import read_objects, whole_number
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import JudgedResponse
from fgrlhf.data.rows import Columns, Row

PRM800K_COLUMNS = {"prompt": "question.problem", "steps": "label.steps"}  # a task's word
PROCESSBENCH_COLUMNS = {"prompt": "problem", "first_error": "label"}
MISTAKE_COLUMNS = {"prompt": "input", "first_error": "mistake_index"}


def prm800k(path: str | Path, report: Report) -> list[JudgedResponse]:
    """PRM800K: several rated completions for every step, of which one is read.

    docs/data_formats.md (Steps) says which one. The others are counted as lost. `labeler` is the
    annotator.
    """
    return _read(path, PRM800K_COLUMNS, report)


def stepwise(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Math-Shepherd and TRL's stepwise supervision (docs/data_formats.md, Steps)."""
    return _read(path, {}, report)


def processbench(path: str | Path, report: Report) -> list[JudgedResponse]:
    """ProcessBench: `{problem, steps, label}`; `label` is the first wrong step from 0, or -1.

    Documented in huggingface.co/datasets/Qwen/ProcessBench. Steps before the first wrong one have
    the score 1, it and later ones 0.
    """
    return _read(path, PROCESSBENCH_COLUMNS, report)


def big_bench_mistake(path: str | Path, report: Report) -> list[JudgedResponse]:
    """BIG-Bench-Mistake: `{input, steps, mistake_index}`; the first wrong step from 0, or null.

    Documented in github.com/WHGTyen/BIG-Bench-Mistake. A few steps are empty: they are left out,
    and so is a row whose first wrong step is empty.
    """
    return _read(path, MISTAKE_COLUMNS, report)


MR_GSM8K = "model_output_"  # the beginning of the names of its keys
MR_GSM8K_STEP = f"{MR_GSM8K}solution_first_error_step"
MR_GSM8K_VERDICT = f"{MR_GSM8K}solution_correctness"
MR_GSM8K_REASON = f"{MR_GSM8K}solution_first_error_reason"
NOT_APPLICABLE = ("", "n/a", "none")  # in place of a step or a reason


def mr_gsm8k(path: str | Path, report: Report) -> list[JudgedResponse]:
    """MR-GSM8K: solutions with the first wrong step, counted from 1 or `N/A`, and the reason.

    Documented in github.com/dvlab-research/MR-GSM8K. The reason is that of the first wrong step. A
    row whose verdict contradicts this number is left out: it is `wrong` without a wrong step, or
    `correct` with one.
    """
    columns = {"prompt": "question", "steps": f"{MR_GSM8K}steps"}  # a task's word
    columns |= {"first_error_from_1": MR_GSM8K_STEP, "references": "ground_truth_solution"}

    def read(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
        stated = _stated(row.get(MR_GSM8K_STEP))
        first = None if stated is None else whole_number(MR_GSM8K_STEP, stated)
        if first == -1:
            first = None
        verdict = check_text(MR_GSM8K_VERDICT, row.get(MR_GSM8K_VERDICT)).strip().lower()
        if (verdict == "correct") != (first is None):
            reason = f"is {shorten(verdict, 40)!r}, but the first wrong step is {first}"
            what = "rows whose verdict contradicts the first wrong step"
            report.drop(number, MR_GSM8K_VERDICT, reason, what)
            return None
        row = {**row, MR_GSM8K_STEP: first, "id": row.get("uuid")}
        judged = _solution(number, row, columns, report)
        reason = _stated(row.get(MR_GSM8K_REASON))
        if judged is None or first is None or reason is None:
            return judged
        judgements = list(judged.judgements)
        wrong = next(i for i, judgement in enumerate(judgements) if not judgement.score)
        reason = check_text(MR_GSM8K_REASON, reason)
        judgements[wrong] = replace(judgements[wrong], reason=reason)
        return replace(judged, judgements=tuple(judgements))

    return read_objects(path, read, report)


def _stated(value: Any) -> Any:
    """The value; None if it says that there is none."""
    is_none = isinstance(value, str) and value.strip().lower() in NOT_APPLICABLE
    return None if is_none else value


def _solution(
    number: int, row: Mapping[str, Any], columns: Columns, report: Report
) -> JudgedResponse | None:
    """The solution in a row; None if it is left out, which is reported."""
    try:
        judged = STEPS.parse(Row(row, columns, report.losses), number)
    except LeftOutError as error:
        report.drop(number, error.key, error.reason, error.what)
        return None
    _count_losses(row, len(judged.spans), report)
    if not judged.spans:
        report.drop(number, "steps", "no step was rated", "rows without a step")
        return None
    return judged


def _read(path: str | Path, columns: Columns, report: Report) -> list[JudgedResponse]:
    def read(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
        judged = _solution(number, row, columns, report)
        if judged is None:
            return None
        labeler = row.get("labeler")
        if columns is not PRM800K_COLUMNS or not isinstance(labeler, str) or not labeler.strip():
            return judged
        judgements = [replace(judgement, annotator=labeler) for judgement in judged.judgements]
        return replace(judged, judgements=tuple(judgements))

    return read_objects(path, read, report)


def _count_losses(row: Mapping[str, Any], n_read: int, report: Report) -> None:
    """Count the completions of PRM800K that are not read.

    Args:
      n_read: how many steps were read. The solution ends after them.
    """
    label = row.get("label")
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
