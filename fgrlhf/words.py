"""Where words begin, in scripts with and without spaces.

A word is what white space separates. In scripts that are written without spaces, every character is
a word, with the marks that combine with it (Thai vowels above and below, for example). Agreement,
rewards, metrics and the segmenter `multilingual` count words by this rule. The feedback pages
accept spans that begin and end at its boundaries (`FG.isInnerBoundary` in
interface_html/templates/core.js).
"""

import functools
import unicodedata
from collections.abc import Iterator, Sequence

# Scripts that are written without spaces: Thai, Lao, Myanmar, Khmer, Han, Hiragana and Katakana.
# The same ranges as in interface_html/templates/core.js.
UNSPACED_SCRIPTS = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x19E0, 0x19FF),
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3038, 0x303B),
    (0x3041, 0x309F),
    (0x30A1, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1B000, 0x1B16F),
    (0x20000, 0x323AF),
)


@functools.lru_cache(maxsize=4096)
def is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script that is written without spaces."""
    code = ord(character)
    return any(first <= code <= last for first, last in UNSPACED_SCRIPTS)


def is_inner_boundary(text: str, at: int) -> bool:
    """Whether a span may start or end inside a word, between `text[at - 1]` and `text[at]`.

    One of the two characters must belong to a script that is written without spaces. White space is
    on neither side.
    """
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if before.isspace() or after.isspace():
        return False
    return is_unspaced(before) or is_unspaced(after)


def word_starts(text: str) -> Iterator[int]:
    """The places where a word begins.

    In scripts that are written without spaces, every character counts as a word, except for marks
    that combine with the character before them.
    """
    for i, character in enumerate(text):
        if character.isspace():
            continue
        combines = unicodedata.category(character).startswith("M")
        if i == 0 or text[i - 1].isspace() or (is_inner_boundary(text, i) and not combines):
            yield i


def word_spans(text: str) -> list[tuple[int, int]]:
    """Half-open character spans of the words. They cover everything except white space."""
    starts = list(word_starts(text))
    nexts = [*starts[1:], len(text)]
    spans = []
    for start, following in zip(starts, nexts):
        spans.append((start, start + len(text[start:following].rstrip())))
    return spans


def words_of(text: str) -> list[str]:
    """The words of a text; for scripts with spaces, the same as `text.split()`."""
    return [text[start:end] for start, end in word_spans(text)]


def count_words(text: str) -> int:
    """The number of words."""
    return sum(1 for _ in word_starts(text))


def join_texts(texts: Sequence[str]) -> str:
    """Sentences as one text, with a space between two of them except in Chinese and Japanese.

    (Thai, Lao, Myanmar and Khmer have spaces between sentences, though not between words.)
    """
    unspaced = is_written_without_spaces("".join(texts))
    joined = ""
    for text in texts:
        touching = joined[-1:] + text[:1]
        if len(touching) == 2 and not (unspaced and any(map(_needs_no_space, touching))):
            joined += " "
        joined += text
    return joined


def _needs_no_space(character: str) -> bool:
    """Whether it is a character or a full-width mark of Chinese or Japanese."""
    is_mark = unicodedata.category(character).startswith("P")
    width = unicodedata.east_asian_width(character)
    return width in "WFH" and (is_mark or is_unspaced(character))


def is_written_without_spaces(text: str) -> bool:
    """Whether most of a text's letters belong to a script that is written without spaces."""
    letters = [character for character in text if character.isalpha()]
    return 2 * sum(map(is_unspaced, letters)) > len(letters)
