"""Offsets in other units, as code points of a text.

A span of this library is [start, end) in Unicode code points, from 0. Tools count otherwise:

    code_points    characters of Python, Rust, Go's runes, SQL
    utf16          code units of JavaScript, Java and C#: a character above U+FFFF, such as most
                   emoji, counts 2
    graphemes      what a reader takes for one character (extended grapheme clusters of Unicode
                   Standard Annex 29): an emoji with its skin tone, a letter with its accents
    words          parts between white space

and some count from 1, or number the last unit instead of the one behind it. The units of a text are
found once and kept for its next spans, so n spans of a text of m characters take time O(n + m).
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import regex

CODE_POINT = "code_points"
UTF16_UNIT = "utf16"
GRAPHEME = "graphemes"
WORD = "words"
UNITS = (CODE_POINT, UTF16_UNIT, GRAPHEME, WORD)
EXCLUSIVE = "exclusive"
INCLUSIVE = "inclusive"
ENDS = (EXCLUSIVE, INCLUSIVE)
BASES = (0, 1)

_PATTERNS = {GRAPHEME: regex.compile(r"\X"), WORD: re.compile(r"\S+")}
_LAST_OF_ONE_UNIT = "\uffff"  # the last character with one UTF-16 code unit


@dataclass(frozen=True)
class Units:
    """The units of a text, in its order.

    Args:
      starts, ends: of every unit, the code points [start, end) of the character, cluster or word
        that it belongs to. The two UTF-16 code units of one character have the same ones.
    """

    starts: Sequence[int]
    ends: Sequence[int]


@lru_cache(maxsize=16)
def units_of(text: str, unit: str) -> Units:
    """The units of a text.

    Args:
      unit: one of `UNITS`.

    Raises:
      ValueError: there is no such unit.
    """
    if unit not in UNITS:
        raise ValueError(f"unknown unit of offsets: {unit}. One of {', '.join(UNITS)}")
    if unit in _PATTERNS:
        spans = [match.span() for match in _PATTERNS[unit].finditer(text)]
        return Units([start for start, _ in spans], [end for _, end in spans])
    if unit == CODE_POINT or all(character <= _LAST_OF_ONE_UNIT for character in text):
        return Units(range(len(text)), range(1, len(text) + 1))
    starts = []
    for place, character in enumerate(text):
        starts.append(place)
        if character > _LAST_OF_ONE_UNIT:
            starts.append(place)
    return Units(starts, [place + 1 for place in starts])


def cuts_grapheme(text: str, start: int, end: int) -> bool:
    """Whether the code points [start, end) begin or end inside a grapheme cluster."""
    if text.isascii():
        return False
    units = units_of(text, GRAPHEME)
    first, last = bisect_left(units.starts, start), bisect_left(units.ends, end)
    return units.starts[first : first + 1] != [start] or units.ends[last : last + 1] != [end]


def to_code_points(
    text: str, start: int, end: int, unit: str = CODE_POINT, base: int = 0, last: str = EXCLUSIVE
) -> tuple[int, int]:
    """[start, end) in code points from 0, of a span that is counted in another way.

    Args:
      unit: one of `UNITS`.
      base: the number of the first unit, 0 or 1.
      last: whether `end` is the number of the unit behind the span (`exclusive`) or of its last
        unit (`inclusive`).

    Returns:
      Offsets outside the text stay outside it: a start or end before the text is negative, one
      behind it or between the two code units of a character is `len(text) + 1`.

    Raises:
      ValueError: there is no such unit, base or end.
    """
    if base not in BASES:
        raise ValueError(f"offsets count from 0 or 1, not from {base}")
    if last not in ENDS:
        raise ValueError(f"unknown end of spans: {last}. One of {', '.join(ENDS)}")
    units = units_of(text, unit)
    first = start - base
    behind = end - base + (last == INCLUSIVE)
    span_start = _start_of(units, first, len(text))
    if first == behind:
        return span_start, span_start
    return span_start, _end_of(units, behind, len(text))


def _start_of(units: Units, place: int, length: int) -> int:
    """The code point at which a unit begins; `length` behind the last one."""
    if place < 0:
        return place
    if place == len(units.starts):
        return length
    is_outside = place > len(units.starts)
    if is_outside or (place > 0 and units.starts[place] == units.starts[place - 1]):
        return length + 1
    return units.starts[place]


def _end_of(units: Units, place: int, length: int) -> int:
    """The code point behind the unit before `place`; 0 if there is none before it."""
    if place <= 0:
        return place
    is_outside = place > len(units.ends)
    if is_outside or (place < len(units.ends) and units.ends[place] == units.ends[place - 1]):
        return length + 1
    return units.ends[place - 1]


def to_utf16(text: str, place: int) -> int:
    """The number of UTF-16 code units before a code point, as JavaScript counts."""
    return bisect_left(units_of(text, UTF16_UNIT).starts, place)
