"""Writes judged steps in the formats of other projects, the inverse of what `STEPS` reads.

    trl             {prompt, completions: [text, ...], labels: [true, ...]}
    math_shepherd   {input, label}: a text with a mark after every step, and its judgements
    prm800k         the problem, and {label: {steps: [{completions: [{text, rating}], ...}]}}

All of them have numbers or good/bad for steps, so every step needs a score.
"""

from collections.abc import Callable
from typing import Any

from fgrlhf.data.formats import Step, StepFeedback, prompt_row
from fgrlhf.data.shapes import BAD_STEP, FIRST_STEPS, GOOD_STEP, STEP_MARK
from fgrlhf.errors import UserError, shorten


def is_good(step: Step, feedback: StepFeedback, error_at_most: float) -> bool:
    """Whether the step's score is greater than `error_at_most`.

    Raises:
      UserError: the step has no score.
    """
    if step.score is None:
        raise UserError(
            f"row {shorten(feedback.prompt.id, 80)}: the step {shorten(step.text, 60)!r} has the"
            f" label {shorten(str(step.label), 40)!r} and no score, which this format needs: add"
            " `score` to its steps, such as 1 for a good one and 0 for a bad one"
        )
    return step.score > error_at_most


def trl_row(feedback: StepFeedback, error_at_most: float = 0.0) -> dict[str, Any]:
    """TRL's stepwise supervision: texts, and whether each step is good."""
    values = {
        "completions": [step.text for step in feedback.steps],
        "labels": [is_good(step, feedback, error_at_most) for step in feedback.steps],
    }
    return prompt_row(feedback.prompt, values)


def math_shepherd_row(feedback: StepFeedback, error_at_most: float = 0.0) -> dict[str, Any]:
    """Math-Shepherd: `input` with the mark after every step, `label` with + or - in its place.

    The format finds the first step by its beginning `Step 1:`. Where a solution lacks it, every
    step gets its number.

    Raises:
      UserError: a step has no score, or the mark or a second beginning is in a text.
    """
    texts = [step.text for step in feedback.steps]
    if texts and not texts[0].startswith(FIRST_STEPS):
        texts = [f"Step {number}: {text}" for number, text in enumerate(texts, 1)]
    if any(STEP_MARK in text for text in [feedback.prompt.text, *texts]):
        raise UserError(
            f"row {shorten(feedback.prompt.id, 80)} contains `{STEP_MARK}`, which marks the ends of"
            " steps in this format: remove it from the text, or write another format"
        )
    marked = f"{feedback.prompt.text} "
    judged = marked
    for number, (step, text) in enumerate(zip(feedback.steps, texts)):
        line = text if number == 0 else f"\n{text}"
        good = is_good(step, feedback, error_at_most)
        marked += f"{line} {STEP_MARK}"
        judged += f"{line} {GOOD_STEP if good else BAD_STEP}"
    return {"input": marked, "label": judged}


def prm800k_row(feedback: StepFeedback, error_at_most: float = 0.0) -> dict[str, Any]:
    """PRM800K: one rated completion for each step. The solution ends after a last bad step.

    The rating is -1 for a bad step, 0 (neutral) for a good one with the score 0, else 1.
    """
    steps = []
    for number, step in enumerate(feedback.steps, 1):
        good = is_good(step, feedback, error_at_most)
        rating = -1
        if good:
            rating = 0 if step.score == 0 else 1
        ends = number == len(feedback.steps) and not good
        steps.append(
            {
                "completions": [{"text": step.text, "rating": rating}],
                "human_completion": None,
                "chosen_completion": None if ends else 0,
            }
        )
    problem = {"problem": feedback.prompt.text}
    return {
        "question": problem,  # a task's word: a key of PRM800K
        "label": {"steps": steps},
    }


# name -> (item, error_at_most) -> row
STEP_ROWS: dict[str, Callable[[StepFeedback, float], dict[str, Any]]] = {
    "trl": trl_row,
    "math_shepherd": math_shepherd_row,
    "prm800k": prm800k_row,
}
