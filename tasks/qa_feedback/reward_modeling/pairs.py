"""Pair files of qa-feedback: rows {question, passages, prediction 1..4, preference: six ints}."""

from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json
from fgrlhf.data.checks import refuse_rows, text_problem
from fgrlhf.data.comparisons import FIRST, SECOND, TIE, Answer, Comparison, pairs_of_outcomes
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.feedback import PAIRS

ANSWERS = 4


def read_pairs(path: str | Path) -> list[Comparison]:
    """The compared rows of a pair file, including those without a decided pair.

    A row without the key `preference` was only annotated: it is checked and left out, and the
    number of such rows is printed.

    Rows may repeat. Answers may be blank: policies write blank answers, so a reward model has to
    learn to score them.

    Raises:
      UserError: malformed rows, each with file, row (from 0), field and reason; or no row was
        compared.
    """
    content = read_json(path)
    if not isinstance(content, list):
        raise UserError(
            f"{path} must be a JSON array of feedback rows, not a {type(content).__name__}"
        )
    comparisons = []
    problems = []
    for number, row in enumerate(content):
        problem = _problem(row)
        if problem is not None:
            problems.append(f"row {number}, {problem}")
            continue
        meta = {"question": row["question"], "passages": row["passages"]}
        prompt = Prompt(str(number), row["question"], meta=meta)
        answers = tuple(Answer(row[f"prediction {i}"]) for i in range(1, ANSWERS + 1))
        if "preference" in row:
            outcomes = pairs_of_outcomes(ANSWERS, row["preference"])
            comparisons.append(Comparison(prompt, answers, outcomes))
    refuse_rows(path, problems)
    if content and not comparisons:
        raise UserError(
            f"{path}: no row has a `preference`, which this reward model learns. Compare the"
            " answers on the comparison page, or use another file"
        )
    left_out = len(content) - len(comparisons)
    if left_out:
        print(f"{path}: {left_out} of {len(content)} rows have no comparison and are left out")
    return comparisons


def _problem(row: Any) -> str | None:
    """The first problem of a row; None for a valid row."""
    if not isinstance(row, dict):
        return "`question`: a row must be an object with the keys of a feedback row"
    problem = text_problem(row.get("question"))
    if problem is not None:
        return f"`question`: {problem}"
    problem = _passages_problem(row.get("passages"))
    if problem is not None:
        return problem
    for i in range(1, ANSWERS + 1):
        problem = text_problem(row.get(f"prediction {i}"), may_be_blank=True)
        if problem is not None:
            return f"`prediction {i}`: {problem}"
    if "preference" not in row:
        return None
    preference = row["preference"]
    is_valid = (
        isinstance(preference, list)
        and len(preference) == len(PAIRS)
        and all(type(outcome) is int and outcome in (TIE, FIRST, SECOND) for outcome in preference)
    )
    if is_valid:
        return None
    return (
        f"`preference`: must be six numbers, each 0, 1 or 2 (got {shorten(repr(preference), 80)})"
    )


def _passages_problem(passages: Any) -> str | None:
    is_valid = isinstance(passages, list) and all(
        isinstance(passage, list) and passage for passage in passages
    )
    if not is_valid:
        return "`passages`: must be a list of passages, each a title and its sentences"
    for number, passage in enumerate(passages):
        for place, sentence in enumerate(passage):
            problem = text_problem(sentence, may_be_blank=True)
            if problem is not None:
                return f"`passages[{number}][{place}]`: {problem}"
    return None
