"""Reads the answer of a solution and compares answers as numbers.

GSM8K ends a solution with `#### 72`. In a solution without that mark, the answer is its last
number.
"""

import re
from fractions import Fraction

MARK = "####"
# an integer with or without commas, a decimal such as 0.5 or .5, or a fraction; a sign belongs to
# it only if no digit or word is before it, as in `5-3`
_NUMBER = re.compile(
    r"(?<![\w.])-?(?:\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?|\.\d+)"
    r"|(?<=[-+*/=$€£])(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
)


def answer_of(text: str) -> Fraction | None:
    """The number that a solution gives as its answer; None if there is none.

    It is the first number after the last `####`, else the last number of the text. Currency signs,
    commas between thousands, units and per cent signs are not read: `$1,080 per week` is 1080.
    """
    _, mark, after = text.rpartition(MARK)
    if mark:
        match = _NUMBER.search(after.split("\n")[0])
        return None if match is None else number(match[0])
    matches = _NUMBER.findall(text)
    return number(matches[-1]) if matches else None


def number(text: str) -> Fraction | None:
    """The value of a number such as `-1,234.50` or `3 / 4`.

    None for a division by zero, and for more digits than Python converts (4,300).
    """
    try:
        return Fraction(text.replace(",", "").replace(" ", ""))
    except (ZeroDivisionError, ValueError):
        return None


def is_right(text: str, reference: str) -> bool:
    """Whether both solutions have the same answer, and have one."""
    answer = answer_of(text)
    return answer is not None and answer == answer_of(reference)
