"""Writes judged steps in the formats of other projects, the inverse of what `STEPS` reads.

    trl             {prompt, completions: [text, ...], labels: [true, ...]}
    math_shepherd   {input, label}: a text with a mark after every step, and its judgements
    prm800k         the problem, and {label: {steps: [{completions: [{text, rating}], ...}]}}

All of them have numbers or good/bad for steps, so every step needs a score.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.records import RowError
from fgrlhf.data.format import prompt_row
from fgrlhf.data.judgements import JudgedResponse, Judgement, Losses
from fgrlhf.data.shapes import (
    BAD_STEP,
    FIRST_STEPS,
    GOOD_STEP,
    STEP_MARK,
    split_marked_steps,
)


def is_good(step: Judgement, solution: JudgedResponse, error_at_most: float) -> bool:
    """Whether the step's score is greater than `error_at_most`.

    Raises:
      UserError: the step has no score.
    """
    if step.score is None:
        raise UserError(
            f"row {shorten(solution.prompt.id, 80)}: the step"
            f" {shorten(solution.marked(step), 60)!r} has the label"
            f" {shorten(str(step.label), 40)!r} and no score, which this format needs: add"
            " `score` to its steps, such as 1 for a good one and 0 for a bad one"
        )
    return step.score > error_at_most


def trl_row(solution: JudgedResponse, error_at_most: float = 0.0) -> dict[str, Any]:
    """TRL's stepwise supervision: texts, and whether each step is good."""
    values = {
        "completions": [solution.marked(step) for step in solution.spans],
        "labels": [is_good(step, solution, error_at_most) for step in solution.spans],
    }
    return prompt_row(solution.prompt, values)


def math_shepherd_row(solution: JudgedResponse, error_at_most: float = 0.0) -> dict[str, Any]:
    """Math-Shepherd: `input` with the mark after every step, `label` with + or - in its place.

    The format finds the first step by its beginning `Step 1:`. Where a solution lacks it, every
    step gets its number.

    Raises:
      UserError: a step has no score, the mark is in a text, or the first step would be found
        elsewhere.
    """
    texts = [solution.marked(step) for step in solution.spans]
    if texts and not texts[0].startswith(FIRST_STEPS):
        texts = [f"Step {number}: {text}" for number, text in enumerate(texts, 1)]
    if any(STEP_MARK in text for text in [solution.prompt.text, *texts]):
        raise UserError(
            f"row {shorten(solution.prompt.id, 80)} contains `{STEP_MARK}`, which marks the ends of"
            " steps in this format: remove it from the text, or write another format"
        )
    marked = f"{solution.prompt.text} "
    judged = marked
    for number, (step, text) in enumerate(zip(solution.spans, texts)):
        line = text if number == 0 else f"\n{text}"
        good = is_good(step, solution, error_at_most)
        marked += f"{line} {STEP_MARK}"
        judged += f"{line} {GOOD_STEP if good else BAD_STEP}"
    if not _is_reread(marked, judged, solution.prompt.text, texts):
        raise UserError(
            f"row {shorten(solution.prompt.id, 80)} contains `{FIRST_STEPS[0]}` or"
            f" `{FIRST_STEPS[1]}` more than once before the end of its first step, and this format"
            " finds that step by it: change the text, or write another format"
        )
    return {"input": marked, "label": judged}


def _is_reread(marked: str, judged: str, prompt: str, steps: Sequence[str]) -> bool:
    """Whether a row of Math-Shepherd has this prompt and these steps, except for blanks."""
    try:
        problem, read = split_marked_steps(marked, judged)
    except RowError:
        return False
    return problem == prompt.strip() and [text for text, _ in read] == [t.strip() for t in steps]


def prm800k_row(solution: JudgedResponse, error_at_most: float = 0.0) -> dict[str, Any]:
    """PRM800K: one rated completion for each step. The solution ends after a last bad step.

    The rating is -1 for a bad step, 0 (neutral) for a good one with the score 0, else 1.
    """
    steps = []
    for number, step in enumerate(solution.spans, 1):
        good = is_good(step, solution, error_at_most)
        rating = _rating(step, good)
        ends = number == len(solution.spans) and not good
        steps.append(
            {
                "completions": [{"text": solution.marked(step), "rating": rating}],
                "human_completion": None,
                "chosen_completion": None if ends else 0,
            }
        )
    problem = {"problem": solution.prompt.text}
    return {
        "question": problem,  # a task's word: a key of PRM800K
        "label": {"steps": steps},
    }


def _rating(step: Judgement, good: bool) -> int:
    """The rating of PRM800K for a step."""
    if not good:
        return -1
    return 0 if step.score == 0 else 1


TRL, MATH_SHEPHERD, PRM800K = "trl", "math_shepherd", "prm800k"

# name -> (item, error_at_most) -> row
STEP_ROWS: dict[str, Callable[[JudgedResponse, float], dict[str, Any]]] = {
    TRL: trl_row,
    MATH_SHEPHERD: math_shepherd_row,
    PRM800K: prm800k_row,
}


def step_rows(
    items: Iterable[JudgedResponse], name: str, error_at_most: float = 0.0
) -> tuple[list[dict[str, Any]], Losses]:
    """The rows of one of these formats, and what they cannot hold.

    A solution without a step has no row: these formats have no text but that of the steps.
    """
    rows = []
    losses = Losses()
    for item in items:
        if not item.spans:
            losses["solutions without a step"] += 1
            continue
        rows.append(STEP_ROWS[name](item, error_at_most))
        for step in item.spans:
            good = is_good(step, item, error_at_most)
            kept = _rating(step, good) if name == PRM800K else float(good)
            losses["labels of steps"] += step.label is not None
            losses["exact scores of steps"] += step.score != kept
        if name != TRL:
            losses["references"] += len(item.prompt.references)
            losses["other keys of rows"] += len(item.prompt.meta)
    return rows, +losses
