"""Malformed rows of a data file: every problem with its file, row, field and reason.

A check yields complaints, `(field, reason)`. The reader of a file adds the file and the row, and
raises one `DataError` with all of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from fgrlhf.base.errors import UserError, counted, first_problems, shorten
from fgrlhf.data.checks import SAME_IN_MANY, first_rows
from fgrlhf.segmentation import sentences
from fgrlhf.words import is_inner_boundary

Complaint = tuple[str, str]  # field, reason

BLANK = "is blank: it must hold a text"

_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
}


@dataclass(frozen=True)
class Problem:
    """One problem. `field` is a path such as `spans[2].end`.

    `row` counts from 0 in a file that is one JSON array. With `place="line"` it is a line of a JSON
    lines file, counted from 1.
    """

    file: str
    row: int
    field: str
    reason: str
    place: str = "row"

    def __str__(self) -> str:
        return f"{self.file}, {self.place} {self.row}, {self.field}: {self.reason}"


class DataError(UserError):
    """Malformed rows. `problems` has all of them; the message lists the first ones.

    A problem that many rows have is one line, which names the first of these rows.
    """

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        rows = {(problem.file, problem.row) for problem in problems}
        has_lines = all(problem.place == "line" for problem in problems)
        places = "file, line" if has_lines else "file, row counted from 0"
        head = (
            f"{counted(len(problems), 'mistake')} in {counted(len(rows), 'row')} of the data"
            f" ({places}, field, reason):"
        )
        lines = "\n  ".join([head, *first_problems(_lines(problems))])
        super().__init__(f"{lines}\nCorrect or remove these rows; nothing was written.")


def _lines(problems: Sequence[Problem]) -> list[str]:
    """A line for each problem, or one for all rows of a file that have the same."""
    rows_of: dict[Problem, list[int]] = {}
    for problem in problems:
        rows_of.setdefault(replace(problem, row=0), []).append(problem.row)
    lines = []
    for problem in problems:
        rows = rows_of[replace(problem, row=0)]
        if len(rows) < SAME_IN_MANY:
            lines.append(str(problem))
        elif problem.row == rows[0]:
            lines.append(
                f"{problem.file}, {problem.place}s {first_rows(rows)}, {problem.field}:"
                f" {problem.reason}"
            )
    return lines


def row_problems(
    rows: Sequence[Any], file: str, check: Callable[[Any], Iterable[Complaint]]
) -> list[Problem]:
    """The problems that `check` finds in each row of a JSON array."""
    problems = []
    for number, row in enumerate(rows):
        for field, reason in check(row):
            problems.append(Problem(file, number, field, reason))
    return problems


# ---- keys and values -----------------------------------------------------------------------------


def key_problems(owner: Mapping[str, Any], prefix: str, key: str, kind: type) -> list[Complaint]:
    """Whether `owner[key]` exists and is of the type `kind`. A boolean is not an integer."""
    if key not in owner:
        return [(f"{prefix}{key}", "missing")]
    value = owner[key]
    is_right = is_int(value) if kind is int else isinstance(value, kind)
    return [] if is_right else [(f"{prefix}{key}", not_a(kind, value))]


def unknown_key_problems(
    owner: Mapping[str, Any], prefix: str, keys: Sequence[str]
) -> Iterator[Complaint]:
    for key in owner:
        if key not in keys:
            yield f"{prefix}{key}", "is not known"


def list_problems(
    items: Sequence[Any], field: str, check: Callable[[Any, str], Iterable[Complaint]]
) -> Iterator[Complaint]:
    """The complaints of `check(item, field of the item)` for every item."""
    for i, item in enumerate(items):
        yield from check(item, f"{field}[{i}]")


def choice_problems(
    owner: Mapping[str, Any], field: str, key: str, choices: Sequence[str]
) -> Iterator[Complaint]:
    """Whether `owner[key]` is one of `choices`."""
    wrong = key_problems(owner, f"{field}.", key, str)
    yield from wrong
    if not wrong and owner[key] not in choices:
        yield f"{field}.{key}", f"{shown(owner[key])} is none of {', '.join(choices)}"


def text_problems(owner: Mapping[str, Any], prefix: str, *keys: str) -> Iterator[Complaint]:
    """Whether `owner[key]` is text, for each key. It may be blank."""
    for key in keys:
        wrong = key_problems(owner, prefix, key, str)
        yield from wrong or text_value_problems(owner[key], f"{prefix}{key}")


def filled_text_problems(owner: Mapping[str, Any], prefix: str, *keys: str) -> Iterator[Complaint]:
    """As `text_problems`, for texts that must not be blank."""
    for key in keys:
        wrong = key_problems(owner, prefix, key, str)
        yield from wrong or filled_value_problems(owner[key], f"{prefix}{key}")


def text_value_problems(value: Any, field: str) -> Iterator[Complaint]:
    if not isinstance(value, str):
        yield field, not_a(str, value)
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        yield field, f"holds half of a surrogate pair at character {error.start}, which is no text"


def filled_value_problems(value: Any, field: str) -> Iterator[Complaint]:
    yield from text_value_problems(value, field)
    if isinstance(value, str) and not value.strip():
        yield field, BLANK


def is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def not_a(kind: type, value: Any) -> str:
    """The reason for a value of the wrong type: `must be a string, is null`."""
    return f"must be {_JSON_NAMES[kind]}, is {json_name(value)}"


def json_name(value: Any) -> str:
    """The JSON name of a value's type, with an article: `an object`, `null`."""
    return _JSON_NAMES.get(type(value), "null")


def shown(value: Any) -> str:
    """`repr(value)` for a reason, cut to about 80 characters. Never raises."""
    try:
        return shorten(repr(value), 80)
    except (ValueError, RecursionError):  # thousands of digits, or thousands of nested lists
        return f"{json_name(value)} too large to show"


# ---- spans of a text -----------------------------------------------------------------------------


def span_problems(start: int, end: int, text: str, field: str, name: str) -> Iterator[Complaint]:
    """Whether characters [start, end) of `text` are whole words or sentences.

    A span must begin where a word or a sentence (fgrlhf/segmentation.py) begins. White space, the
    end of the text or another sentence must follow it. In scripts that are written without spaces,
    a span may begin and end between any two characters.

    Args:
      start, end: the span, in code points.
      text: what it is a span of.
      field: where the span is in the row.
      name: name of `text` in the reasons.
    """
    length = f"{name} has {len(text)} characters"
    if not 0 <= start < len(text):
        yield f"{field}.start", f"{shown(start)} is out of range: {length}"
    if not 0 < end <= len(text):
        yield f"{field}.end", f"{shown(end)} is out of range: {length}"
    elif end <= start:
        reason = f"the span starts at {shown(start)} and must not be empty"
        yield f"{field}.end", f"{shown(end)} is out of range: {reason}"
    elif start >= 0:
        starts_word = start == 0 or text[start - 1].isspace() or is_inner_boundary(text, start)
        is_first = starts_word or start in {first for first, _ in sentences(text)}
        if text[start].isspace() or not is_first:
            yield f"{field}.start", f"{start} is off a word boundary: {_around(text, start)}"
        ends_word = end == len(text) or text[end].isspace() or is_inner_boundary(text, end)
        if not ends_word and end not in {last for _, last in sentences(text)}:
            yield f"{field}.end", f"{end} is off a word boundary: {_around(text, end)}"


def _around(text: str, at: int) -> str:
    return repr(f"{text[max(at - 10, 0) : at]}|{text[at : at + 10]}")


def overlap_problems(
    spans: Iterable[tuple[int, int, int]], field: str, name: str
) -> Iterator[Complaint]:
    """Spans that overlap an earlier one.

    Args:
      spans: (start, end, index in the list `name`).
      field: path of that list in the row, such as `feedback.errors`.
      name: the list's own name, for the reason.
    """
    furthest_end = 0
    furthest = -1
    for start, end, i in sorted(spans):
        if start < furthest_end:
            overlap = f"overlaps {name}[{furthest}], which ends at {furthest_end}"
            yield f"{field}[{i}]", f"the span [{start}, {end}) {overlap}"
        if end > furthest_end:
            furthest_end = end
            furthest = i


# ---- sentences of a context ----------------------------------------------------------------------


@dataclass(frozen=True)
class SentenceKeys:
    """How rows point to sentences of their context.

    The context is a list of sources. A source is its title, then its sentences.

    Args:
      id: key of the source's number, counted from 1.
      sentences: key of the list of sentence numbers; 0 is the title.
      noun: name of a source in messages.
    """

    id: str
    sentences: str
    noun: str


def sentence_problems(
    owner: Mapping[str, Any], field: str, sources: Sequence[Any] | None, keys: SentenceKeys
) -> Iterator[Complaint]:
    """Whether `owner` points to sentences that exist.

    Args:
      owner: an object with the two keys of `keys`.
      field: where it is in the row.
      sources: the row's context; None if it is malformed, so that only types are checked.
      keys: the names of the keys.
    """
    yield from key_problems(owner, f"{field}.", keys.id, int)
    yield from key_problems(owner, f"{field}.", keys.sentences, list)
    source_id = owner.get(keys.id)
    source = None
    if sources is not None and is_int(source_id):
        if 1 <= source_id <= len(sources):
            source = sources[source_id - 1]
        else:
            count = f"the row has {len(sources)}, counted from 1"
            reason = f"{keys.noun} {shown(source_id)} does not exist: {count}"
            yield f"{field}.{keys.id}", reason
    sentence_ids = owner.get(keys.sentences)
    if not isinstance(sentence_ids, list):
        return
    for i, sentence_id in enumerate(sentence_ids):
        place = f"{field}.{keys.sentences}[{i}]"
        if not is_int(sentence_id):
            yield place, not_a(int, sentence_id)
        elif source is not None and not 0 <= sentence_id < len(source):
            extent = f"{keys.noun} {source_id} has {len(source) - 1}, and 0 for its title"
            yield place, f"sentence {shown(sentence_id)} does not exist: {extent}"


def source_list_problems(row: Mapping[str, Any], key: str) -> list[Complaint]:
    """Whether `row[key]` is a list of sources, each a title and sentences."""
    wrong = key_problems(row, "", key, list)
    return wrong or list(list_problems(row[key], key, source_problems))


def source_problems(source: Any, field: str) -> Iterator[Complaint]:
    if not isinstance(source, list):
        yield field, not_a(list, source)
    elif not source:
        yield field, "is empty: its first entry must be the title"
    else:
        yield from list_problems(source, field, text_value_problems)
