"""Feedback rows as what offline training reads: compared answers, and corrected answers to imitate.

corrected    the annotator's corrected answer is better than prediction 1. Marked are the error
spans of the prediction and, in the
             corrected answer, the words that are not the prediction's
preference   the decided ones of the six comparisons between the four predictions. Nothing is marked
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.errors import UserError, shorten
from fgrlhf.types import Prompt
from tasks.qa_feedback.feedback import PAIRS, FeedbackRow, read_feedback

WORD = re.compile(r"\w+|[^\w\s]")
MAX_EQUAL_PAIRS = (
    2_000_000  # about a second; an answer of 200 words and its correction have about a thousand
)


def new_words(before: str, after: str) -> tuple[tuple[int, int], ...]:
    """Ranges of characters of `after` whose words are not in the longest alignment with `before`;
    punctuation marks are words, and the case of letters does not count.

    An alignment compares every pair of equal words. Texts with more than `MAX_EQUAL_PAIRS` of them
    (thousands of words that repeat) are not aligned: what lies between their common beginning and
    their common end is new.
    """
    matches = list(WORD.finditer(after))
    olds, news = (
        [word.casefold() for word in WORD.findall(before)],
        [match[0].casefold() for match in matches],
    )
    counts = Counter(olds)
    if sum(counts[word] for word in news) > MAX_EQUAL_PAIRS:
        ranges = [_changed_middle(olds, news)]
    else:
        opcodes = difflib.SequenceMatcher(None, olds, news, autojunk=False).get_opcodes()
        ranges = [
            (first, end) for kind, _, _, first, end in opcodes if kind in ("insert", "replace")
        ]
    return tuple(
        (matches[first].start(), matches[end - 1].end()) for first, end in ranges if first < end
    )


def _changed_middle(olds: Sequence[str], news: Sequence[str]) -> tuple[int, int]:
    """[first, end) of `news` without the words that both lists begin with, then without those that
    both end with.
    """
    shorter = min(len(olds), len(news))
    first = 0
    while first < shorter and olds[first] == news[first]:
        first += 1
    same_end = 0
    while same_end < shorter - first and olds[-1 - same_end] == news[-1 - same_end]:
        same_end += 1
    return first, len(news) - same_end


def corrected_comparison(prompt: Prompt, row: FeedbackRow) -> Comparison | None:
    """None where there is no corrected answer, or nothing to correct."""
    corrected, predicted = row.corrected.strip(), row.predictions[0]
    if not corrected or corrected == predicted.strip():
        return None
    wrong = tuple(sorted((error.start, error.end) for error in row.errors))
    return Comparison(
        prompt,
        (Answer(corrected, new_words(predicted, corrected)), Answer(predicted, wrong)),
        ((0, 1),),
    )


def preference_comparison(prompt: Prompt, row: FeedbackRow) -> Comparison | None:
    """None where all six comparisons are ties."""
    pairs = tuple((i, j) if p == 1 else (j, i) for (i, j), p in zip(PAIRS, row.preference) if p)
    return (
        Comparison(prompt, tuple(Answer(text) for text in row.predictions), pairs)
        if pairs
        else None
    )


SOURCES = {"corrected": corrected_comparison, "preference": preference_comparison}


def source(name: str):
    """A `ComparisonSource`: (feedback file, prompts) -> comparisons."""

    def read(file: str, prompts: Sequence[Prompt]) -> list[Comparison]:
        return make_comparisons(read_feedback(file), prompts, name, file)

    return read


def make_comparisons(
    rows: Sequence[FeedbackRow], prompts: Iterable[Prompt], source: str, file: str
) -> list[Comparison]:
    """The comparisons of a feedback file.

    Raises:
      UserError: there is none; or a question is not among `prompts`.
    """
    found = [
        made
        for prompt, row in zip(prompts_of(rows, prompts, file), rows)
        if (made := SOURCES[source](prompt, row))
    ]
    if not found:
        other = next(name for name in SOURCES if name != source)
        reason = {
            "corrected": "no row has a corrected answer that differs from prediction 1",
            "preference": "all comparisons between predictions are ties",
        }[source]
        raise UserError(
            f"{file} has no pairs to learn from: it has {len(rows)} rows, and {reason}. "
            f"Give another file with data.feedback_file=..., or set data.pairs={other}"
        )
    return found


def corrected_examples(
    rows: Sequence[FeedbackRow], prompts: Iterable[Prompt], file: str
) -> list[dict[str, Any]]:
    """{text, answer} rows for supervised fine-tuning on the corrected answers, those without any
    error included.

    Raises:
      UserError: no row has a corrected answer; or a question is not among `prompts`.
    """
    pairs = zip(prompts_of(rows, prompts, file, setting="questions"), rows)
    found = [
        {"text": prompt.text, "answer": [row.corrected.strip()]}
        for prompt, row in pairs
        if row.corrected.strip()
    ]
    if not found:
        raise UserError(
            f"{file} has no corrected answer in any of its {len(rows)} rows, so there is nothing to"
            " imitate. Give another file"
        )
    return found


def prompts_of(
    rows: Sequence[FeedbackRow],
    prompts: Iterable[Prompt],
    file: str,
    setting: str = "data.train_file",
) -> list[Prompt]:
    """The prompt of each row: what the policy read when it answered. A feedback row has the
    question and its passages, not their text.

    Args:
      rows: of the feedback file named `file`.
      prompts: of the file that the user gave with `setting`.

    Raises:
      UserError: some rows ask what no prompt asks.
    """
    by_content = {_content(prompt.meta): prompt for prompt in prompts}
    found = [by_content.get(_content(row.raw)) for row in rows]
    strange = [i for i, prompt in enumerate(found) if prompt is None]
    if strange:
        raise UserError(
            f"{file}: {len(strange)} of {len(rows)} rows have a question or passages that no row of"
            f" `{setting}` has (the first is row {strange[0]},"
            f" {shorten(repr(rows[strange[0]].question))}), so the policy's prompt is not known."
            f" Give the file that the questions came from: {setting}=..."
        )
    return found


def _content(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Question and passages without white space: the same whether sentences stand alone, as in
    feedback, or joined.
    """
    passages = [
        [p["wikipage"], p["content"]] if isinstance(p, Mapping) else p for p in row["passages"]
    ]
    return tuple("".join("".join(part).split()) for part in [row["question"], *passages])
