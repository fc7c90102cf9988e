"""Reward-model training files: reading, checking, padding.

A segment file has JSON lines {id, text: [words], feedback_tags: [tags]}. A `</s>` before each
segment carries its tag; the words before the first `</s>` are the prefix. The key `spaces` has
the white space before the words: place in `text` -> white space, where it is not a single space
("" before the first word of the prompt and of the response). Files without it have words only.
`cluster`, which may be missing too, names what rows share, such as a document.

A pair file has comparisons (fgrlhf/data/formats.py): a prompt, K >= 2 responses, and any pairs of
them. A task may read pair files in its own format (`Task.rm_pairs`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import model_validator
from torch import Tensor

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import numbered_jsonl
from fgrlhf.base.records import ABSENT, Record, RowError, Text, read, read_each, refuse_rows
from fgrlhf.data.comparisons import Comparison
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.data.read import read_rows
from fgrlhf.data.stream import JsonLines, is_large, items_in, stored_rows
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.prefix import Prefix, RMText, unless_single
from fgrlhf.reward_models.rm_input import RMInput
from fgrlhf.reward_utils import SEGMENT_MARK, WHOLE_LEVELS, is_step
from fgrlhf.runs.runlog import say
from fgrlhf.utils import IGNORED

MOST_NAMES = 5  # of unknown tags, in a message

Pair = tuple[int, int, float]  # index of the better and of the worse response, margin
PrefixOfWords = Callable[[Sequence[str]], Prefix]
PairReader = Callable[[str | Path], list[Comparison]]


# ---- segment files -------------------------------------------------------------------------------


class TaggedWords(Record):
    """A line of a segment file."""

    text: list[Text]
    feedback_tags: list[Text]
    marks: list[int] = ABSENT
    spaces: dict[str, str] = ABSENT
    cluster: Any = None

    @property
    def places(self) -> list[int]:
        """The places of the `</s>` before the segments: the key `marks`, else every `</s>`."""
        if self.marks is not None:
            return self.marks
        return [place for place, word in enumerate(self.text) if word == SEGMENT_MARK]

    @model_validator(mode="after")
    def _places_exist(self):
        count = len(self.text)
        if count != len(self.feedback_tags):
            raise RowError("feedback_tags", f"{len(self.feedback_tags)} tags for {count} words")
        if self.marks is not None:
            are_places = all(0 <= mark < count for mark in self.marks)
            if not are_places or sorted(set(self.marks)) != self.marks:
                raise RowError("marks", "must be increasing places in `text`, counted from 0")
            if any(self.text[mark] != SEGMENT_MARK for mark in self.marks):
                reason = f"a word of `text` at these places is not `{SEGMENT_MARK}`"
                raise RowError("marks", reason)
        if not self.places:
            reason = f"has no `{SEGMENT_MARK}`, so there is no segment to judge"
            raise RowError("text", reason)
        places = {str(place) for place in range(count)}
        if self.spaces and (
            self.spaces.keys() - places or any(map(str.strip, self.spaces.values()))
        ):
            reason = "must map places in `text`, counted from 0, to white space"
            raise RowError("spaces", reason)
        return self


@dataclass(frozen=True)
class SegmentRow:
    """A tagged response. A segment's label is its index among the label names, or IGNORED.

    Rows with the same `cluster` share a document, and are one unit of intervals. `has_spaces`:
    whether the row has the white space of its prompt and, unless it has steps, of its response.
    """

    text: RMText
    labels: tuple[int, ...]
    cluster: str | None = None
    has_spaces: bool = False


def read_segment_rows(
    path: str | Path,
    labels: Sequence[str],
    ignore_label: str,
    level: str | None = None,
    prefix_of_words: PrefixOfWords = Prefix.of,
) -> Sequence[SegmentRow]:
    """The rows of a segment file. A row may occur more than once.

    Those of a large file stay there (fgrlhf/data/stream.py).

    Args:
      labels: the tags to learn, in the order of the network's outputs.
      ignore_label: the tag of words that are not judged.
      level: of the segments. At the level of whole responses, a response must have one segment;
        other levels are not checked.
      prefix_of_words: the words before the first segment -> the prefix.
    Raises:
      UserError: lines are malformed (listed with file, line, key and reason), or no segment
        has a label.
    """
    known = {*labels, ignore_label}

    def row_of(_: int | str, values: Any) -> SegmentRow:
        row = read(TaggedWords, values)
        _check_segments(row, known, level)
        has_spaces = _has_spaces(row, level)
        words, segments = _split_at(row.text, row.places)
        text = RMText(prefix_of_words(words), segments)
        if has_spaces:
            text = _with_spaces(text, row, level)
        tags = [row.feedback_tags[place] for place in row.places]
        return SegmentRow(
            text,
            tuple(IGNORED if tag == ignore_label else labels.index(tag) for tag in tags),
            None if row.cluster is None else str(row.cluster),
            has_spaces=has_spaces,
        )

    rows: Sequence[SegmentRow]
    if is_large(path):
        rows, problems = items_in(
            JsonLines(path, lines=True),
            lambda number, values: len([row_of(number, values)]),
            lambda number, values: [row_of(number, values)],
            path,
            place="line",
        )
    else:
        rows, problems = read_each(numbered_jsonl(path), row_of, path, place="line")
    refuse_rows(problems, "trained on")
    _refuse_empty(path, rows)
    if all(label == IGNORED for row in rows for label in row.labels):
        raise UserError(
            f"{path} has no judged segment: every `{SEGMENT_MARK}` has the tag"
            f" {shorten(ignore_label, 40)}, so there is nothing to learn from"
        )
    return rows


def _split_at(
    words: Sequence[str], marks: Sequence[int]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The words before the first mark, and those of each segment.

    Args:
      marks: the index of the `</s>` before each segment.
    """
    ends = [*marks[1:], len(words)]
    segments = tuple(tuple(words[mark + 1 : end]) for mark, end in zip(marks, ends))
    return tuple(words[: marks[0]]), segments


def _has_spaces(row: TaggedWords, level: str | None) -> bool:
    """Whether a row has its white space: that before the prompt's and the response's first word."""
    first = row.places[0]
    needed = [0] if first > 0 else []
    if not is_step(level):
        of_segments = set(range(first, len(row.text))) - set(row.places)
        needed += sorted(of_segments)[:1]
    return row.spaces is not None and all(str(place) in row.spaces for place in needed)


def _with_spaces(text: RMText, row: TaggedWords, level: str | None) -> RMText:
    every = [row.spaces.get(str(place), " ") for place in range(len(row.text))]
    of_prompt, of_response = _split_at(every, row.places)
    prefix = replace(text.prefix, spaces=unless_single(of_prompt[: len(text.prefix.words)]))
    return replace(text, prefix=prefix, spaces=None if is_step(level) else of_response)


def _check_segments(row: TaggedWords, known_tags: set[str], level: str | None) -> None:
    """Raise `RowError` if a row has other tags or segments than the model learns."""
    unknown = sorted(set(row.feedback_tags) - known_tags)
    if unknown:
        names = ", ".join(shorten(tag, 40) for tag in unknown[:MOST_NAMES])
        more = f" and {len(unknown) - MOST_NAMES} more" if len(unknown) > MOST_NAMES else ""
        known = ", ".join(shorten(tag, 40) for tag in sorted(known_tags))
        raise RowError(
            "feedback_tags",
            f"{names}{more} not among {known}; name the file's labels under `labels`",
        )
    segments = len(row.places)
    if level in WHOLE_LEVELS and segments > 1:
        raise RowError(
            "text",
            f"has {segments} segments, but data.level={level} means one for the whole response; set"
            " data.level to the level of the file's segments",
        )


def label_positions(rm_input: RMInput, labels: Sequence[int]) -> list[int]:
    """One label per token that has an output: each segment's where it is judged, else IGNORED."""
    row = [IGNORED] * (rm_input.read_length - rm_input.first_output)
    for position, label in zip(rm_input.positions, labels, strict=True):
        if position is not None:
            row[position - rm_input.first_output] = label
    return row


class SegmentCollator:
    """(RMInput, labels per token) pairs -> the network's inputs and labels_BT."""

    def __init__(self, inputs: RMInputs):
        self.inputs = inputs

    def __call__(self, rows: Sequence[tuple[RMInput, list[int]]]) -> dict[str, Tensor]:
        width = max(len(labels) for _, labels in rows)
        labels_BT = torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in rows])
        return {**self.inputs.collate([rm_input for rm_input, _ in rows]), "labels": labels_BT}


# ---- pair files ----------------------------------------------------------------------------------


def read_pair_rows(path: str | Path, reader: PairReader | None = None) -> Sequence[Comparison]:
    """The rows of a pair file, including those without pairs.

    Those of a large source with the library's keys stay there (fgrlhf/data/stream.py).

    Responses may be blank: policies write blank responses, so a reward model must learn to score
    them.

    Args:
      reader: reader of the task's own format; None: the library's format. Files with the library's
        keys are read as such in any case.
    Raises:
      UserError: there are no rows, or rows are malformed (listed with file, row from 0, field and
        reason).
    """
    comparisons: Sequence[Comparison]
    if reader is None or _has_library_keys(path):
        counts: Counter[str] = Counter()
        comparisons = COMPARISONS.stream(path, counts=counts)
        for what, count in counts.items():
            say(f"{path}: {what}: {count:,}")
    else:
        comparisons = reader(path)
    _refuse_empty(path, comparisons)
    return comparisons


def _has_library_keys(path: str | Path) -> bool:
    """Whether the first row of a file has the responses of the library's comparisons."""
    stored = stored_rows(path)
    if stored is None:
        first = next(iter(read_rows(path)), None)
    else:
        _, first = next(stored.rows(), (0, None))
    return isinstance(first, dict) and ("responses" in first or "chosen" in first)


def first_position_share(comparisons: Sequence[Comparison]) -> tuple[int, int]:
    """(pairs won by the response listed first, pairs).

    Without position bias this is about one half, if responses are listed in random order.
    """
    won = decided = 0
    for comparison in comparisons:
        won += sum(better < worse for better, worse in comparison.pairs)
        decided += len(comparison.pairs)
    return won, decided


class PairCollator:
    """(RMInputs of a prompt's responses, pairs) -> the inputs of all responses, and labels_QN3.

    A label is the index of the better and of the worse response among all responses of the batch,
    and the pair's margin. There are Q prompts and N pairs of the prompt with the most pairs; the
    labels of the others are padded with IGNORED.
    """

    def __init__(self, inputs: RMInputs):
        self.inputs = inputs

    def __call__(
        self, rows: Sequence[tuple[Sequence[RMInput], Sequence[Pair]]]
    ) -> dict[str, Tensor]:
        responses: list[RMInput] = []
        labels: list[list[list[float]]] = []
        for rm_inputs, pairs in rows:
            first = len(responses)
            labels.append(
                [[first + better, first + worse, margin] for better, worse, margin in pairs]
            )
            responses += rm_inputs
        width = max(len(pairs) for pairs in labels)
        padding: list[float] = [IGNORED] * 3
        padded = [pairs + [padding] * (width - len(pairs)) for pairs in labels]
        return {**self.inputs.collate(responses), "labels": torch.tensor(padded).float()}


def _refuse_empty(path: str | Path, rows: Sequence) -> None:
    if not rows:
        raise UserError(f"{path} has no rows, so there is nothing to learn from")
