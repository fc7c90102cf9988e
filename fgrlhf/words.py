"""Where words begin, in scripts with and without spaces; statistics; words that metrics compare.

A word is what white space separates. In scripts that are written without spaces, every character is
a word, with the marks that combine with it (Thai vowels above and below, for example). Agreement,
rewards, metrics and the segmenter `multilingual` count words by this rule. The feedback pages
accept spans that begin and end at its boundaries (`FG.isInnerBoundary` in
interface_html/templates/core.js).
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

# Scripts that are written without spaces: Thai, Lao, Tibetan, Myanmar, Khmer, Tai, Balinese, Han,
# Bopomofo, Hiragana, Katakana and Javanese. The same ranges as in interface_html/templates/core.js.
UNSPACED_SCRIPTS = (
    (0x0E00, 0x0FFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x1950, 0x19FF),
    (0x1A20, 0x1AAF),
    (0x1B00, 0x1B7F),
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3038, 0x303B),
    (0x3041, 0x309F),
    (0x30A1, 0x30FF),
    (0x3105, 0x312F),
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA980, 0xA9FF),
    (0xAA60, 0xAADF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1B000, 0x1B16F),
    (0x20000, 0x323AF),
)
WIDE_MARKS = "、。！（），：；？"  # need no space after them, whatever the script of what follows


@functools.lru_cache(maxsize=4096)
def is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script that is written without spaces."""
    code = ord(character)
    return any(first <= code <= last for first, last in UNSPACED_SCRIPTS)


def is_inner_boundary(text: str, at: int) -> bool:
    """Whether a span may start or end inside a word, between `text[at - 1]` and `text[at]`.

    One of the two characters must belong to a script that is written without spaces, or be a
    full-width mark. White space is on neither side.
    """
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if before.isspace() or after.isspace():
        return False
    either = (before, after)
    return any(is_unspaced(character) or character in WIDE_MARKS for character in either)


def word_starts(text: str) -> Iterator[int]:
    """The places where a word begins.

    In scripts that are written without spaces, every character counts as a word, except for marks
    that combine with the character before them and for what nobody sees (zero-width spaces).
    """
    for i, character in enumerate(text):
        if character.isspace():
            continue
        combines = unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")
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


# ---- statistics of words -------------------------------------------------------------------------


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """Every run of n words, in order; [] if the text has fewer than n."""
    words = words_of(text)
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def distinct(texts: Sequence[str], n: int) -> float | None:
    """distinct-n = |set of n-grams of all texts| / number of words of all texts.

    From 0 to 1. The denominator counts words, not n-grams, as in Li et al. (2016), section 5.2, so
    texts of fewer than n words count as 0. Several texts are pooled; n-grams do not cross from one
    text to the next. None if there are no words.
    """
    number_of_words = sum(count_words(text) for text in texts)
    if number_of_words == 0:
        return None
    different = {ngram for text in texts for ngram in ngrams(text, n)}
    return len(different) / number_of_words


def copying(text: str, source: str, n: int) -> float | None:
    """The share of a text's n-grams that are in the source, from 0 to 1.

    1 minus the share of novel n-grams of See et al. (2017), arXiv 1704.04368, figure 6. None for a
    text of fewer than n words.
    """
    all_ngrams = ngrams(text, n)
    if not all_ngrams:
        return None
    given = set(ngrams(source, n))
    return sum(ngram in given for ngram in all_ngrams) / len(all_ngrams)


def repetition(text: str, n: int) -> float | None:
    """1 - |set of n-grams| / number of n-grams: the share that repeats an earlier n-gram.

    From 0 to 1. With n = 4 it is seq-rep-4 of Welleck et al. (2020), "Neural text generation with
    unlikelihood training", section 6.1. None for a text of fewer than n words.
    """
    all_ngrams = ngrams(text, n)
    if not all_ngrams:
        return None
    return 1 - len(set(all_ngrams)) / len(all_ngrams)


def msttr(text: str, n: int) -> float | None:
    """MSTTR: the mean over segments of n words of their different words / n.

    From 0 to 1. Segments follow each other; words after the last whole one do not count.
    (`lexicalrichness` 0.5.1 leaves the last segment out even if it is whole.) None for a text of
    fewer than n words: the shorter a text, the higher would be its ratio. Johnson (1944), Studies
    in language behavior.
    """
    words = [word.casefold() for word in words_of(text)]
    segments = [words[start : start + n] for start in range(0, len(words) - n + 1, n)]
    if not segments:
        return None
    return sum(len(set(segment)) for segment in segments) / (n * len(segments))


# ---- words that metrics compare, in any script ---------------------------------------------------
#
# The script of the references decides, so that a score is a function of the texts alone:
#
#     "auto"    BLEU    TER       references
#     CJK       zh      asian     mostly Chinese characters
#     unspaced  char    char      mostly Thai, Lao, Tibetan, Khmer, Burmese and others; Japanese
#     other     13a     tercom
#
# `zh` and `asian` divide no kana, so a Japanese clause would be one word.

Script = Literal["CJK", "unspaced", "other"]

FIRST_CJK = 0x2E80  # the radicals
# what belongs to Japanese, and to the phonetic notation of Chinese
KANA = ((0x3041, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F))
LEAST_KANA = 0.2  # of the characters of a Japanese text
# joiners and direction marks: invisible, and also found inside words
INVISIBLE = "\u00ad\u200c\u200d\u200e\u200f\u2060\ufeff"
# scripts of South East Asia beyond it: Javanese, additions to Burmese, Tai Viet
SOUTH_EAST = ((0xA980, 0xA9FF), (0xAA60, 0xAADF))
_ASCII_WORD = re.compile("[a-z0-9]+")


@functools.lru_cache(maxsize=4096)
def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


@functools.lru_cache(maxsize=4096)
def _is_of_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"


def unicode_words(text: str) -> list[str]:
    """Runs of letters, digits and combining marks of any script, in lower case (case folding).

    In scripts that are written without spaces, every character with its marks is a word. Composed
    and decomposed characters are equal (NFC), and invisible joiners are left out. For a text in
    ASCII, these are the words of `rouge_score`.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    words: list[str] = []
    before = ""  # the last letter or digit, if it is directly before this character
    for character in unicodedata.normalize("NFC", text.casefold()):
        if character in INVISIBLE:
            continue
        if not _is_of_word(character):
            before = ""
            continue
        is_apart = is_unspaced(character) or (before != "" and is_unspaced(before))
        if before and (_is_mark(character) or not is_apart):
            words[-1] += character
        else:
            words.append(character)
        if not _is_mark(character):
            before = character
    return words


def script_of(texts: Iterable[str]) -> Script:
    """The kind of script that most words of the texts belong to."""
    counts: Counter[str] = Counter()
    for text in texts:
        for word in unicode_words(text):
            if not is_unspaced(word[0]):
                counts["other"] += 1
            elif _is_in(word[0], KANA):
                counts["kana"] += 1
            else:
                counts["CJK" if _is_cjk(word[0]) else "unspaced"] += 1
    of_japanese = counts["CJK"] + counts["kana"]
    if of_japanese + counts["unspaced"] <= counts["other"]:
        return "other"
    is_chinese = of_japanese >= counts["unspaced"] and counts["kana"] < LEAST_KANA * of_japanese
    return "CJK" if is_chinese else "unspaced"


def _is_cjk(character: str) -> bool:
    return ord(character) >= FIRST_CJK and not _is_in(character, SOUTH_EAST)


def _is_in(character: str, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= ord(character) <= last for first, last in ranges)


BLEU_TOKENIZERS: dict[Script, str] = {"CJK": "zh", "unspaced": "char", "other": "13a"}
TER_TOKENIZERS: dict[Script, str] = {"CJK": "asian", "unspaced": "char", "other": "tercom"}


def bleu_tokenizer(references: Sequence[str]) -> str:
    """The name of sacrebleu's tokenizer that suits the references."""
    return BLEU_TOKENIZERS[script_of(references)]


def ter_tokenizer(references: Sequence[str]) -> str:
    """The tokenizer of TER that suits the references: see `fgrlhf.metrics.overlap.ter`."""
    return TER_TOKENIZERS[script_of(references)]
