"""Texts with marks inside them: `<v>...</v>` and other simple tags."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """A tag and the characters [start, end) of the plain text that it encloses.

    Args:
      inside: the index, in `Untagged.marks`, of the mark that encloses this one; None if none does.
    """

    tag: str
    start: int
    end: int
    inside: int | None = None


@dataclass(frozen=True)
class Untagged:
    """A text without its tags.

    Args:
      text: the plain text.
      marks: in the order in which they begin.
      problems: one sentence for every tag that does not fit.
    """

    text: str
    marks: tuple[Mark, ...]
    problems: tuple[str, ...]


@dataclass
class _Tag:
    """An opening tag, and what is known about it so far.

    Args:
      start: its place in the plain text.
      outer: the tag that was open when this one was opened.
      end: the place of its closing tag; None until that tag is read.
      mark: the index of its mark; None until the marks are made.
    """

    name: str
    start: int
    outer: "_Tag | None"
    end: int | None = None
    mark: int | None = None


def untag(text: str, tags: Sequence[str], reopening_closes: bool = False) -> Untagged:
    """Remove the tags of these names; any other `<...>` is text.

    Tags that overlap, or have no partner, mark nothing: they are removed and reported.

    Args:
      reopening_closes: whether an opening tag closes the innermost open one if both are equal.
    """
    names = "|".join(re.escape(tag) for tag in tags)
    pieces: list[str] = []
    length = 0  # of the plain text so far
    last = 0  # the end of the previous tag in `text`
    all_tags: list[_Tag] = []
    open_tags: list[_Tag] = []  # the innermost one is the last
    problems: list[str] = []
    for match in re.finditer(rf"<(/?)({names})>", text):
        piece = text[last : match.start()]
        pieces.append(piece)
        length += len(piece)
        last = match.end()
        name = match[2]
        innermost = open_tags[-1] if open_tags else None
        closes = match[1] == "/"
        if reopening_closes and innermost is not None and innermost.name == name:
            closes = True
        if closes:
            _close(name, length, open_tags, problems)
        else:
            tag = _Tag(name, length, innermost)
            all_tags.append(tag)
            open_tags.append(tag)
    pieces.append(text[last:])
    for tag in open_tags:
        problems.append(f"<{tag.name}> at {tag.start} has no closing tag")
    return Untagged("".join(pieces), _marks(all_tags), tuple(problems))


def _close(name: str, place: int, open_tags: list[_Tag], problems: list[str]) -> None:
    """Close the innermost open tag of this name. Open tags inside it mark nothing."""
    if all(tag.name != name for tag in open_tags):
        problems.append(f"</{name}> at {place} closes a tag that is not open")
        return
    while open_tags[-1].name != name:
        unclosed = open_tags.pop()
        problems.append(f"<{unclosed.name}> at {unclosed.start} is not closed before </{name}>")
    open_tags.pop().end = place


def _marks(tags: Sequence[_Tag]) -> tuple[Mark, ...]:
    """The marks of the tags that were closed. Outer tags come before those inside them."""
    marks: list[Mark] = []
    for tag in tags:
        if tag.end is None:
            continue
        outer = tag.outer
        while outer is not None and outer.end is None:
            outer = outer.outer
        tag.mark = len(marks)
        marks.append(Mark(tag.name, tag.start, tag.end, None if outer is None else outer.mark))
    return tuple(marks)
