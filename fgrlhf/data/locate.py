"""Finds the span that a data set claims, and says how.

Published spans are often wrong: offsets that count from 1, ends that include the last character,
offsets of an escaped text, quotes with other apostrophes or another case. A claim is never shifted
silently. `locate` tries, in this order,

    exact offset                the claimed offsets, and the quote is the text there
    offset without a quote      the claimed offsets; there is nothing to verify them with
    searched verbatim           the quote is in the text, at another place or without a claimed one
    searched folded             it is there with another case, other blanks, quotes or dashes

and otherwise reports `ambiguous` (several equally good places), `not found`, `empty` or `outside
the text`. A search finds whole words first: "or" is not looked for inside "forest" if it is a word
of the text, in whatever case. What is only found inside words is reported apart. Of several places,
the one whose start is nearest to the claimed start is taken.

Quotes and dashes are not folded if the quote has no letter or digit: they are what it is about.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fgrlhf.data.offsets import CODE_POINT, EXCLUSIVE, GRAPHEME, UTF16_UNIT, to_code_points
from fgrlhf.words import is_inner_boundary

EXACT = "exact offset"
UNVERIFIED = "offset without a quote"
VERBATIM = "searched verbatim"
FOLDED = "searched folded"
INSIDE = ", cutting a word"  # the end of these two if a span begins or ends inside a word
AMBIGUOUS = "ambiguous"
NOT_FOUND = "not found"
EMPTY = "empty"
OUTSIDE = "outside the text"
MARKED = "marked by tags"  # in the text itself, so there is nothing to locate
WHOLE = "heading of the whole text"  # the quote is the heading, so it means all of the text
FOUND = (EXACT, UNVERIFIED, VERBATIM, FOLDED, MARKED, WHOLE)


@dataclass(frozen=True)
class Reading:
    """A way to count offsets.

    Args:
      name: for reports; "" for code points from 0 with an exclusive end.
      span: (text, claimed start, claimed end) -> [start, end) in code points, which may be outside
        the text.
    """

    name: str
    span: Callable[[str, int, int], tuple[int, int]]


def shifted(name: str, start: int, end: int) -> Reading:
    """A reading that adds these numbers to the claimed start and end."""
    return Reading(name, lambda _, first, last: (first + start, last + end))


def counted(name: str, unit: str = CODE_POINT, base: int = 0, last: str = EXCLUSIVE) -> Reading:
    """A reading with a unit, base and end of fgrlhf/data/offsets.py."""
    return Reading(
        name, lambda text, start, end: to_code_points(text, start, end, unit, base, last)
    )


CODE_POINTS = counted("")
UTF16 = counted("UTF-16 code units", UTF16_UNIT)
GRAPHEMES = counted("grapheme clusters", GRAPHEME)
READING_OF = {CODE_POINT: CODE_POINTS, UTF16_UNIT: UTF16, GRAPHEME: GRAPHEMES}


@dataclass(frozen=True)
class Located:
    """What became of a claim: [start, end) in code points, or None, and how it was found.

    `reading` is the way to count with which the offsets were right; "" for the usual one, or if
    the span was not found by its offsets.
    """

    span: tuple[int, int] | None
    how: str
    reading: str = ""

    @property
    def outcome(self) -> str:
        """`how`, with the reading, for counts."""
        return f"{self.how} ({self.reading})" if self.reading else self.how


def locate(
    text: str,
    quote: str | None = None,
    start: int | None = None,
    end: int | None = None,
    readings: Sequence[Reading] = (CODE_POINTS,),
) -> Located:
    """The span of `text` that a quote, offsets or both claim; see the module's docstring.

    Args:
      readings: the ways to count that the data set uses, the usual one first. Without a quote,
        only the first is tried.

    Raises:
      ValueError: neither a quote nor both offsets are given.
    """
    if quote is None:
        if start is None or end is None:
            raise ValueError("a claim has a quote, or a start and an end")
        return _by_offset(text, start, end, readings[0])
    if not quote.strip():
        return Located(None, EMPTY)
    if start is not None and end is not None:
        for reading in readings:
            first, last = reading.span(text, start, end)
            # a slice ends with the text, so `last` may be behind it
            if first >= 0 and last <= len(text) and text[first:last] == quote:
                return Located((first, last), EXACT, reading.name)
    near = None
    if start is not None:
        near, _ = readings[0].span(text, start, start)
    verbatim = [(place, place + len(quote)) for place in _places(text, quote)]
    whole = [place for place in verbatim if is_whole(text, *place)]
    if whole:
        return _nearest(whole, near, VERBATIM)
    folded = _folded_places(text, quote)
    whole = [place for place in folded if is_whole(text, *place)]
    if whole:
        return _nearest(whole, near, FOLDED)
    for places, how in ((verbatim, VERBATIM), (folded, FOLDED)):
        if places:
            return _nearest(places, near, how + INSIDE)
    return Located(None, NOT_FOUND)


def is_whole(text: str, start: int, end: int) -> bool:
    """Whether [start, end) cuts no word. Characters of scripts without spaces are words."""
    for place in (start, end):
        if not 0 < place < len(text) or is_inner_boundary(text, place):
            continue
        if _is_in_word(text[place - 1]) and _is_in_word(text[place]):
            return False
    return True


def _is_in_word(character: str) -> bool:
    """Whether a character is a letter, a digit or a mark that is combined with one."""
    return unicodedata.category(character)[0] in "LMN"


def _by_offset(text: str, start: int, end: int, reading: Reading) -> Located:
    first, last = reading.span(text, start, end)
    if first < 0 or last > len(text) or first > last:
        return Located(None, OUTSIDE)
    if first == last:
        return Located(None, EMPTY)
    return Located((first, last), UNVERIFIED, reading.name)


def _nearest(places: Sequence[tuple[int, int]], near: int | None, how: str) -> Located:
    """The place whose start is nearest to `near`; ambiguous if two are equally near."""
    if len(places) == 1:
        return Located(places[0], how)
    if near is None:
        return Located(None, AMBIGUOUS)
    first, second = sorted(places, key=lambda place: abs(place[0] - near))[:2]
    if abs(first[0] - near) == abs(second[0] - near):
        return Located(None, AMBIGUOUS)
    return Located(first, how)


def _places(text: str, part: str) -> list[int]:
    """All places where `part` begins, also where occurrences overlap."""
    places = []
    place = text.find(part)
    while place >= 0:
        places.append(place)
        place = text.find(part, place + 1)
    return places


# ---- folding -------------------------------------------------------------------------------------

_SINGLE_QUOTES = "‘’‚‛`´ʼ′＇"  # noqa: RUF001
_DOUBLE_QUOTES = "“”„‟«»″＂"
_DASHES = "‐‑‒–—―−"  # noqa: RUF001
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
_FOLDED = (
    dict.fromkeys(_SINGLE_QUOTES, "'")
    | dict.fromkeys(_DOUBLE_QUOTES, '"')
    | dict.fromkeys(_DASHES, "-")
    | {"…": "..."}
)


@dataclass(frozen=True)
class FoldedText:
    """A text in which equal meaning is written equally.

    Args:
      text: composed (NFC), without case, with `'`, `"` and `-` for all quotes and dashes, and one
        blank for every run of white space.
      starts, ends: of every character of `text`, the code points [start, end) of the original that
        it came from. Characters of one origin have the same start.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def origin(self, start: int, end: int) -> tuple[int, int] | None:
        """The original span of folded characters [start, end); None if it would cut one."""
        cuts_start = start > 0 and self.starts[start - 1] == self.starts[start]
        cuts_end = end < len(self.text) and self.starts[end] == self.starts[end - 1]
        if cuts_start or cuts_end:
            return None
        return self.starts[start], self.ends[end - 1]


@lru_cache(maxsize=64)
def fold(text: str) -> FoldedText:
    """The folded form of a text, with the way back to its code points."""
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in _clusters(text):
        folded = _fold_cluster(text[start:end])
        if folded == " " and pieces and pieces[-1] == " ":
            ends[-1] = end
            continue
        pieces += folded
        starts += [start] * len(folded)
        ends += [end] * len(folded)
    return FoldedText("".join(pieces), tuple(starts), tuple(ends))


def _clusters(text: str) -> list[tuple[int, int]]:
    """Spans of the characters that are composed with each other."""
    clusters = []
    start = 0
    continues = _continuations(text)
    for i in range(1, len(text) + 1):
        if i < len(text) and continues[i]:
            continue
        clusters.append((start, i))
        start = i
    return clusters if text else []


def _continuations(text: str) -> list[bool]:
    """Whether each character is composed with the one before, across characters without width."""
    continues = [False] * len(text)
    later = False  # whether the next character with a width is composed with the one before
    for i in range(len(text) - 1, -1, -1):
        if text[i] not in _INVISIBLE:
            later = _is_composed(text[i])
        continues[i] = later
    return continues


def _is_composed(character: str) -> bool:
    """Whether a character is composed with the one before: combining marks and Hangul vowels."""
    return unicodedata.combining(character) != 0 or "\u1160" <= character <= "\u11ff"


def _fold_cluster(cluster: str) -> str:
    visible = "".join(character for character in cluster if character not in _INVISIBLE)
    composed = unicodedata.normalize("NFC", visible)
    if composed.isspace():
        return " "
    # lower case can be several characters, which are composed again: ß with an accent
    lower = unicodedata.normalize("NFC", composed.casefold())
    return "".join(_FOLDED.get(character, character) for character in lower)


def _folded_places(text: str, quote: str) -> list[tuple[int, int]]:
    """The spans of `text` that equal the quote when both are folded."""
    part = fold(quote).text.strip(" ")
    if not any(_is_in_word(character) for character in part):
        return []
    folded = fold(text)
    origins = [folded.origin(place, place + len(part)) for place in _places(folded.text, part)]
    return [origin for origin in origins if origin is not None]
