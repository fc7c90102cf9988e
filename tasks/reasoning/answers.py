"""Reads the answer of a solution and compares answers as numbers.

GSM8K ends a solution with `#### 72`. In a solution without that mark, or with nothing after it, the
answer is its last number.
"""

import re
from fractions import Fraction

MARK = "####"
# An integer with or without commas, a decimal such as 0.5 or .5, or a fraction. A minus after a
# digit, a letter, `.`, `)` or `%` is a subtraction, as in `5-3`, and not a sign.
_NUMBER = re.compile(
    r"(?<![\w.)%])-?(?:\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?|\.\d+)"
    r"|(?<=[-+*/=$€£])(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
)
_CURRENCY_AFTER_MINUS = re.compile(r"-[$€£][ \t]*(?=[\d.])")
# after anything else, a minus with blanks is a subtraction, a dash or an item of a list
_MINUS_BEFORE_BLANKS = re.compile(rf"({MARK}|=)[ \t]*-[ \t]*(?:[$€£][ \t]*)?(?=[\d.])")


def answer_of(text: str) -> Fraction | None:
    """The number that a solution gives as its answer; None if there is none.

    It is the first number after the last `####`, else the last number of the text. Currency signs,
    commas between thousands, units and per cent signs are not read: `$1,080 per week` is 1080. The
    sign may be a hyphen or U+2212, also before a currency sign: `-$5` is -5. Blanks may follow it
    after `####` and `=`.
    """
    text = text.replace("\N{MINUS SIGN}", "-")
    text = _MINUS_BEFORE_BLANKS.sub(r"\1 -", text)
    text = _CURRENCY_AFTER_MINUS.sub("-", text)
    _, mark, after = text.rpartition(MARK)
    first = _NUMBER.search(after) if mark else None
    if first is not None:
        return number(first[0])
    matches = _NUMBER.findall(text)
    return number(matches[-1]) if matches else None


def number(text: str) -> Fraction | None:
    """The value of a number such as `-1,234.50`, `3 / 4` or `4.5/3`.

    None for a division by zero, and for more digits than Python converts (4,300).
    """
    above, _, below = text.replace(",", "").replace(" ", "").partition("/")
    try:
        return Fraction(above) / Fraction(below or 1)
    except (ZeroDivisionError, ValueError):
        return None


def is_right(text: str, reference: str) -> bool:
    """Whether both solutions have the same answer, and have one."""
    answer = answer_of(text)
    return answer is not None and answer == answer_of(reference)
