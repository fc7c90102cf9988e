"""Reward-model training files: reading, checking, padding.

Segment files are JSON lines {id, text: [words], feedback_tags: [tags]}: a `</s>` before each
segment carries its tag. Pair files are JSON arrays of rows {question, passages, prediction 1..4,
preference: six ints}.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from fgrlhf.data.checks import refuse_rows, text_problem
from fgrlhf.errors import UserError, shorten
from fgrlhf.files import read_json, read_jsonl
from fgrlhf.reward_models.inputs import (
    ANSWER_MARK,
    CONTEXT_MARK,
    IGNORED,
    RMInput,
    RMInputs,
    RMText,
)
from fgrlhf.reward_models.scoring import split_at
from fgrlhf.reward_utils import SEGMENT_MARK
from fgrlhf.types import Prompt

OUTPUTS = 4
PAIRS = tuple(combinations(range(OUTPUTS), 2))  # 1v2 1v3 1v4 2v3 2v4 3v4
TIE, FIRST, SECOND = 0, 1, 2
MOST_NAMES = 5  # of unknown tags, in a message


@dataclass(frozen=True)
class SegmentRow:
    """One tagged answer; a segment's label is its index among the label names, or IGNORED."""

    text: RMText
    labels: tuple[int, ...]


@dataclass(frozen=True)
class PairRow:
    """Four answers to a question and, for each of `PAIRS`, 1 (first better), 2 (second better) or 0
    (tie).
    """

    prompt: Prompt
    outputs: tuple[str, ...]
    preference: tuple[int, ...]


def read_segment_rows(
    path: str | Path,
    labels: Sequence[str],
    ignore_label: str,
    level: str | None = None,
) -> list[SegmentRow]:
    """The rows of a segment file. The same row may be there more than once.

    Args:
      labels: the tags that are learned, in the order of the network's outputs.
      ignore_label: the tag of what is not judged.
      level: of the segments, if that is to be checked: `sequence` means one segment for each
        answer.
    Raises:
      UserError: malformed lines, each with file, row (from 0), field and reason; or no segment has
        a label.
    """
    rows, problems = [], []
    for number, row in enumerate(read_jsonl(path)):
        problem = _segment_problem(row, {*labels, ignore_label}, level)
        if problem:
            problems.append(f"row {number}, {problem}")
            continue
        marks = [i for i, word in enumerate(row["text"]) if word == SEGMENT_MARK]
        tags = [row["feedback_tags"][i] for i in marks]
        rows.append(
            SegmentRow(
                split_at(row["text"], marks),
                tuple(IGNORED if t == ignore_label else labels.index(t) for t in tags),
            )
        )
    _refuse(path, rows, problems)
    if all(label == IGNORED for row in rows for label in row.labels):
        raise UserError(
            f"{path} has no judged segment: every `{SEGMENT_MARK}` has the tag"
            f" {shorten(ignore_label, 40)}, so there is nothing to learn from"
        )
    return rows


def _segment_problem(row, known: set[str], level: str | None) -> str | None:
    if (
        not isinstance(row, dict)
        or not isinstance(row.get("text"), list)
        or not isinstance(row.get("feedback_tags"), list)
    ):
        return "`text`, `feedback_tags`: must be lists of words and of tags"
    words, tags = row["text"], row["feedback_tags"]
    for place, word in enumerate(words):
        problem = text_problem(word)
        if problem is not None:
            return f"`text[{place}]`: {problem}"
    if len(words) != len(tags):
        return f"`feedback_tags`: {len(tags)} tags for {len(words)} words"
    for place, tag in enumerate(tags):
        problem = text_problem(tag)
        if problem is not None:
            return f"`feedback_tags[{place}]`: {problem}"
    unknown = sorted(set(tags) - known)
    if unknown:
        names = ", ".join(shorten(tag, 40) for tag in unknown[:MOST_NAMES])
        more = f" and {len(unknown) - MOST_NAMES} more" if len(unknown) > MOST_NAMES else ""
        return (
            f"`feedback_tags`: {names}{more} not among {', '.join(sorted(known))}; "
            "name the file's labels under `labels`"
        )
    segments = words.count(SEGMENT_MARK)
    if segments == 0:
        return f"`text`: holds no `{SEGMENT_MARK}`, so there is no segment to judge"
    if level == "sequence" and segments > 1:
        return (
            f"`text`: has {segments} segments, but data.level=sequence means one for the whole"
            " answer; set data.level to what the file was cut into"
        )
    return None


def read_pair_rows(path: str | Path) -> list[PairRow]:
    """The rows of a pair file. The same row may be there more than once, and answers may be blank:
    policies write such answers, and a reward model has to know what they are worth.

    Raises:
      UserError: malformed rows, each with file, row (from 0), field and reason.
    """
    content = read_json(path)
    if not isinstance(content, list):
        raise UserError(
            f"{path} must be a JSON array of feedback rows, it is a {type(content).__name__}"
        )
    rows, problems = [], []
    for number, row in enumerate(content):
        problem = _pair_problem(row)
        if problem:
            problems.append(f"row {number}, {problem}")
            continue
        outputs = tuple(row[f"prediction {i + 1}"] for i in range(OUTPUTS))
        meta = {"question": row["question"], "passages": row["passages"]}
        rows.append(
            PairRow(
                Prompt(str(number), row["question"], meta=meta), outputs, tuple(row["preference"])
            )
        )
    _refuse(path, rows, problems)
    return rows


def _pair_problem(row) -> str | None:
    if not isinstance(row, dict):
        return "`question`: a row must be an object with the keys of a feedback row"
    problem = text_problem(row.get("question"))
    if problem is not None:
        return f"`question`: {problem}"
    passages = row.get("passages")
    if not isinstance(passages, list) or not all(
        isinstance(passage, list) and passage for passage in passages
    ):
        return "`passages`: must be a list of passages, each a title and its sentences"
    for number, passage in enumerate(passages):
        for place, sentence in enumerate(passage):
            problem = text_problem(sentence, may_be_blank=True)
            if problem is not None:
                return f"`passages[{number}][{place}]`: {problem}"
    for i in range(1, OUTPUTS + 1):
        problem = text_problem(row.get(f"prediction {i}"), may_be_blank=True)
        if problem is not None:
            return f"`prediction {i}`: {problem}"
    preference = row.get("preference")
    if (
        not isinstance(preference, list)
        or len(preference) != len(PAIRS)
        or not all(type(p) is int and p in (TIE, FIRST, SECOND) for p in preference)
    ):
        return (
            "`preference`: must be six numbers, each 0, 1 or 2 (got"
            f" {shorten(repr(preference), 80)})"
        )
    return None


def _refuse(path: str | Path, rows: Sequence, problems: Sequence[str]) -> None:
    refuse_rows(path, problems)
    if not rows:
        raise UserError(f"{path} holds no rows; make it with create_rm_train_files.sh")


def pair_prefix(prompt: Prompt, with_passages: bool) -> list[str]:
    """`question:` Q [`context:` `wikipage:` TITLE `text:` sentences ...] `answer:` as words."""
    words = ["question:", *prompt.meta["question"].split()]
    passages = prompt.meta["passages"] if with_passages else []
    words += [CONTEXT_MARK] if passages else []
    for title, *sentences in passages:
        words += [
            "wikipage:",
            *title.split(),
            "text:",
            *(word for sentence in sentences for word in sentence.split()),
        ]
    return [*words, ANSWER_MARK]


def first_position_share(rows: Sequence[PairRow]) -> tuple[int, int]:
    """(decided pairs won by the first-listed answer, decided pairs): a fair annotator comes near
    one half.
    """
    decided = [p for row in rows for p in row.preference if p != TIE]
    return decided.count(FIRST), len(decided)


def label_positions(read: RMInput, labels: Sequence[int]) -> list[int]:
    """One label per token: each segment's at the position that judges it, IGNORED elsewhere."""
    row = [IGNORED] * read.read_length
    for position, label in zip(read.positions, labels, strict=True):
        if position is not None:
            row[position] = label
    return row


class SegmentCollator:
    """(RMInput, labels per token) pairs -> the network's inputs and labels_BT."""

    def __init__(self, inputs: RMInputs):
        self.inputs = inputs

    def __call__(self, rows: Sequence[tuple[RMInput, list[int]]]) -> dict[str, Tensor]:
        width = max(len(labels) for _, labels in rows)
        labels_BT = torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in rows])
        return {**self.inputs.collate([read for read, _ in rows]), "labels": labels_BT}


class PairCollator:
    """(four RMInputs, preference) pairs -> the inputs of all outputs, question by question, and
    labels (questions, 6).

    A label is 0 where the first of the pair is better, 1 where the second is, IGNORED for a tie.
    """

    def __init__(self, inputs: RMInputs):
        self.inputs = inputs

    def __call__(
        self, rows: Sequence[tuple[Sequence[RMInput], Sequence[int]]]
    ) -> dict[str, Tensor]:
        to_label: Mapping[int, int] = {TIE: IGNORED, FIRST: 0, SECOND: 1}
        labels = torch.tensor([[to_label[p] for p in preference] for _, preference in rows])
        return {
            **self.inputs.collate([read for four, _ in rows for read in four]),
            "labels": labels,
        }
