"""Pair files of qa-feedback: rows {question, passages, prediction 1..4, preference: six ints}."""

from pathlib import Path

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.base.records import read_all
from fgrlhf.data.comparisons import Answer, Comparison, pairs_of_outcomes
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.validation import ANSWERS, ComparedAnswers


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
    rows = read_all(ComparedAnswers, content, path, "trained on")
    comparisons = []
    for number, (row, values) in enumerate(zip(rows, content)):
        meta = {"question": row.question, "passages": values["passages"]}
        prompt = Prompt(str(number), row.question, meta=meta)
        texts = (row.answer_1, row.answer_2, row.answer_3, row.answer_4)
        answers = tuple(Answer(text) for text in texts)
        if row.preference is not None:
            outcomes = pairs_of_outcomes(ANSWERS, row.preference)
            comparisons.append(Comparison(prompt, answers, outcomes))
    if content and not comparisons:
        raise UserError(
            f"{path}: no row has a `preference`, which this reward model learns. Compare the"
            " answers on the comparison page, or use another file"
        )
    left_out = len(content) - len(comparisons)
    if left_out:
        print(f"{path}: {left_out} of {len(content)} rows have no comparison and are left out")
    return comparisons
