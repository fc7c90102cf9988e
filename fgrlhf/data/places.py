"""Places in texts that people marked: words, sentences of a response, sentences of a context."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator

from fgrlhf.base.records import (
    AnyText,
    Complaint,
    is_whole,
    key_problems,
    shown,
)
from fgrlhf.segmentation import sentences
from fgrlhf.words import is_inner_boundary

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
    owner: Mapping[str, Any], field: str, sources: Sequence[Any], keys: SentenceKeys
) -> Iterator[Complaint]:
    """Whether `owner` points to sentences that exist.

    Args:
      owner: an object with the two keys of `keys`.
      field: where it is in the row.
      sources: the row's context.
      keys: the names of the keys.
    """
    kinds = {keys.id: int, keys.sentences: list[int]}
    yield from key_problems(owner, f"{field}.", kinds)
    source_id, sentence_ids = owner.get(keys.id), owner.get(keys.sentences)
    if not is_whole(source_id):
        return
    if not 1 <= source_id <= len(sources):
        count = f"the row has {len(sources)}, counted from 1"
        yield f"{field}.{keys.id}", f"{keys.noun} {shown(source_id)} does not exist: {count}"
        return
    last = len(sources[source_id - 1]) - 1
    for i, sentence_id in enumerate(sentence_ids if isinstance(sentence_ids, list) else []):
        if is_whole(sentence_id) and not 0 <= sentence_id <= last:
            extent = f"{keys.noun} {source_id} has {last}, and 0 for its title"
            reason = f"sentence {shown(sentence_id)} does not exist: {extent}"
            yield f"{field}.{keys.sentences}[{i}]", reason


def _with_title(source: list[str]) -> list[str]:
    if not source:
        raise ValueError("is empty: its first entry must be the title")
    return source


Source = Annotated[list[AnyText], AfterValidator(_with_title)]  # a title, then sentences
