"""Feedback rows for offline training: compared answers, and corrected answers to imitate.

corrected     the annotator's corrected answer is better than prediction 1. The error spans of the
              prediction and the new words of the corrected answer are marked.
preference    the decided pairs of the six comparisons of the four predictions, without marks.
marks         prediction 1 alone: bad, with its error spans marked, or good if it has no error.
both          `preference`, and prediction 1 once more as in `marks`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.data.comparisons import (
    Answer,
    Comparison,
    ComparisonSource,
    correction,
    pairs_of_outcomes,
)
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.feedback import FeedbackRow, annotated_rows, compared_rows, read_feedback


def corrected_comparison(prompt: Prompt, row: FeedbackRow) -> Comparison | None:
    """The corrected answer over prediction 1; None if nothing was corrected."""
    wrong = [error.place for error in row.errors]
    return correction(prompt, row.predictions[0], row.corrected, wrong)


def preference_comparison(prompt: Prompt, row: FeedbackRow) -> Comparison | None:
    """The decided pairs of the four predictions; None if all six comparisons are ties."""
    pairs = pairs_of_outcomes(len(row.predictions), row.preference)
    if not pairs:
        return None
    return Comparison(prompt, tuple(Answer(text) for text in row.predictions), pairs)


def marked_answer(prompt: Prompt, row: FeedbackRow) -> Comparison:
    """Prediction 1 with its errors; without one it is good."""
    marked = tuple(sorted(error.place for error in row.errors))
    answers = (Answer(row.predictions[0], marked),)
    return Comparison(prompt, answers, (), labels=(not marked,))


def both_judgements(prompt: Prompt, row: FeedbackRow) -> Comparison | None:
    """`preference_comparison` and `marked_answer` in one; a part that the row lacks is left out."""
    compared = preference_comparison(prompt, row) if row.is_compared else None
    marked = marked_answer(prompt, row) if row.is_annotated else None
    if compared is None or marked is None:
        return compared or marked
    answers = (*compared.answers, *marked.answers)
    labels = (*(None for _ in compared.answers), *marked.labels)
    return replace(compared, answers=answers, labels=labels)


@dataclass(frozen=True)
class _Source:
    """How a feedback file becomes comparisons.

    Args:
      select: the rows that have what is needed, of the file with this name. Prints how many are
        left out.
      compare: the comparison of a row; None if it has none.
      why_none: the reason if no row has one.
    """

    select: Callable[[Sequence[FeedbackRow], str], list[FeedbackRow]]
    compare: Callable[[Prompt, FeedbackRow], Comparison | None]
    why_none: str


_SOURCES = {
    "corrected": _Source(
        annotated_rows,
        corrected_comparison,
        "no row has a corrected answer that differs from prediction 1",
    ),
    "preference": _Source(
        compared_rows,
        preference_comparison,
        "all comparisons between predictions are ties",
    ),
    "marks": _Source(annotated_rows, marked_answer, "none is annotated"),
    "both": _Source(
        lambda rows, file: list(rows),
        both_judgements,
        "none is annotated or compared",
    ),
}


def make_comparisons(
    rows: Sequence[FeedbackRow], prompts: Iterable[Prompt], source: str, file: str
) -> list[Comparison]:
    """The comparisons of a feedback file, from the rows that have what `source` needs.

    Raises:
      UserError: there are none, or a question is not among `prompts`.
    """
    selected = {id(row) for row in _SOURCES[source].select(rows, file)}
    comparisons = []
    # a prompt for every row, so that messages have the numbers of the file's rows
    for prompt, row in zip(prompts_of(rows, prompts, file), rows):
        if id(row) not in selected:
            continue
        comparison = _SOURCES[source].compare(prompt, row)
        if comparison is not None:
            comparisons.append(comparison)
    if not comparisons:
        other = next(name for name in _SOURCES if name != source)
        raise UserError(
            f"{file} has no pairs to learn from: it has {len(rows)} rows, and"
            f" {_SOURCES[source].why_none}. Set data.feedback_file=... to another file, or set"
            f" data.pairs={other}"
        )
    return comparisons


def _reader(source: str) -> ComparisonSource:
    """Reads a feedback file; see `make_comparisons`."""
    return lambda file, prompts: make_comparisons(read_feedback(file), prompts, source, file)


SOURCES: dict[str, ComparisonSource] = {name: _reader(name) for name in _SOURCES}


def corrected_examples(
    rows: Sequence[FeedbackRow], prompts: Iterable[Prompt], file: str
) -> list[dict[str, Any]]:
    """The rows of the questions, {text, answer, ...}, with the corrected answers.

    They are demonstrations for SFT, and prompts with a correction as `{reference}` for sdpo.
    Answers without an error are included; their correction is the answer itself.

    Raises:
      UserError: no row has a corrected answer, or a question is not among `prompts`.
    """
    annotated_rows(rows, file)  # raises if there are none, and says how many are left out
    examples = []
    for prompt, row in zip(prompts_of(rows, prompts, file, setting="questions"), rows):
        corrected = row.corrected.strip() if row.is_annotated else ""
        if corrected:
            examples.append({"text": prompt.text, "answer": [corrected], **prompt.meta})
    if not examples:
        raise UserError(
            f"{file} has no corrected answer in any of its {len(rows)} rows, so there is nothing to"
            " imitate. Use another file"
        )
    return examples


def prompts_of(
    rows: Sequence[FeedbackRow],
    prompts: Iterable[Prompt],
    file: str,
    setting: str = "data.train_file",
) -> list[Prompt]:
    """The policy's prompt for each row.

    A feedback row has the question and its passages, but not the prompt's text.

    Args:
      rows: of the feedback file named `file`.
      prompts: of the prompts file in the setting `setting`.
      file: the name of the feedback file, for messages.
      setting: the name of the setting, for messages.

    Raises:
      UserError: some rows have a question that no prompt has.
    """
    by_content = {_content(prompt.meta): prompt for prompt in prompts}
    matches = []
    unknown = []
    for i, row in enumerate(rows):
        prompt = by_content.get(_content(row.raw))
        if prompt is None:
            unknown.append(i)
        else:
            matches.append(prompt)
    if unknown:
        raise UserError(
            f"{file}: {len(unknown)} of {len(rows)} rows have a question or passages that no row of"
            f" `{setting}` has (the first is row {unknown[0]},"
            f" {shorten(repr(rows[unknown[0]].question))}), so the policy's prompt is not known."
            f" Set {setting}=... to the file that the questions came from"
        )
    return matches


def _content(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Question and passages without white space, which differs between the two kinds of files."""
    texts = [row["question"]]
    for passage in row["passages"]:
        if isinstance(passage, Mapping):
            texts.append(passage["wikipage"] + passage["content"])
        else:
            texts.append("".join(passage))
    return tuple("".join(text.split()) for text in texts)
