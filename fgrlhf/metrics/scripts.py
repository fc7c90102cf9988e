"""Words of a text in any script, for the metrics that compare words.

The script of the references decides, so that a score is a function of the texts alone:

    "auto"    BLEU    TER       references
    CJK       zh      asian     mostly Chinese characters
    unspaced  char    char      mostly Thai, Lao, Tibetan, Khmer, Burmese and others; Japanese
    other     13a     tercom

`zh` and `asian` divide no kana, so a Japanese clause would be one word.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

from fgrlhf.words import is_unspaced

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


@lru_cache(maxsize=4096)
def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


@lru_cache(maxsize=4096)
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
    """The tokenizer of TER that suits the references: see `overlap.ter`."""
    return TER_TOKENIZERS[script_of(references)]
