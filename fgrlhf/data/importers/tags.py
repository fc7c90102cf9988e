"""Texts with marks inside them: `<v>...</v>` and other simple tags."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """A tag and the characters [start, end) of the plain text that it encloses.

    `inside` is the number of the mark that encloses this one; None: it is not in another mark.
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


def untag(text: str, tags: Sequence[str], reopening_closes: bool = False) -> Untagged:
    """Remove the tags of these names; any other `<...>` is text.

    Tags that overlap, or have no partner, mark nothing: they are removed and reported.

    Args:
      reopening_closes: whether an opening tag closes the innermost open one if both are equal.
    """
    names = "|".join(re.escape(tag) for tag in tags)
    plain: list[str] = []
    length = 0
    opened: list[tuple[str, int, int]] = []  # tag, start, its number
    marks: dict[int, Mark] = {}
    enclosing: dict[int, int | None] = {}
    problems = []
    last = 0
    count = 0
    for match in re.finditer(rf"<(/?)({names})>", text):
        piece = text[last : match.start()]
        plain.append(piece)
        length += len(piece)
        last = match.end()
        closes, tag = bool(match[1]), match[2]
        if reopening_closes and opened and opened[-1][0] == tag:
            closes = True
        if not closes:
            enclosing[count] = opened[-1][2] if opened else None
            opened.append((tag, length, count))
            count += 1
        elif any(name == tag for name, _, _ in opened):
            while opened[-1][0] != tag:
                name, start, _ = opened.pop()
                problems.append(f"<{name}> at {start} is not closed before </{tag}>")
            _, start, number = opened.pop()
            marks[number] = Mark(tag, start, length, enclosing[number])
        else:
            problems.append(f"</{tag}> at {length} closes a tag that is not open")
    plain.append(text[last:])
    problems += [f"<{name}> at {start} has no closing tag" for name, start, _ in opened]
    # marks are numbered in the order of their opening tags; those that were never closed are gone
    kept = sorted(marks)
    places = {number: place for place, number in enumerate(kept)}
    ordered = []
    for number in kept:
        mark = marks[number]
        inside = mark.inside
        while inside is not None and inside not in places:
            inside = enclosing[inside]
        place = None if inside is None else places[inside]
        ordered.append(Mark(mark.tag, mark.start, mark.end, place))
    return Untagged("".join(plain), tuple(ordered), tuple(problems))
