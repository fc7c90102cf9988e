"""Rewards of two games that a random model can learn: increasing numbers, and a date.

Both are synthetic tasks of RL4LMs (Ramamurthy et al. 2023). A reward does not apply to the other
game's prompts: it returns None for them.
"""

import re
from collections.abc import Iterator
from datetime import date
from typing import Literal

from pydantic import Field

from fgrlhf.configs.strict import Count
from fgrlhf.rewards.kind import RuleReward
from fgrlhf.text_types import Prompt, SegmentScore

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WORD = re.compile(r"\S+")
_DATE = re.compile(rf"(?=\b(\d{{1,2}}) ({'|'.join(MONTHS)}) (\d{{4}})\b)")


class Increasing(RuleReward):
    """1 / max(words, length) for each number of the increasing run that the response begins with.

    The first number must be above the prompt's. The run ends at the first word that is not a larger
    number, so a response of exactly `length` increasing numbers gets 1 in all.
    """

    kind: Literal["increasing"] = "increasing"
    length: Count = Field(description="numbers in a full response")

    def score(self, prompt: Prompt, text: str) -> list[SegmentScore] | None:
        if prompt.meta["game"] != "increasing":
            return None
        words = list(_WORD.finditer(text))
        largest = prompt.meta["above"]
        value = 1 / max(len(words), self.length)
        scores = []
        for word in words:
            if not word[0].isdecimal() or int(word[0]) <= largest:
                break
            largest = int(word[0])
            scores.append(SegmentScore(word.start(), word.end(), value, "larger"))
        return scores


class Date(RuleReward):
    """1 for the first calendar date of a response; nothing for a response without a date."""

    kind: Literal["date"] = "date"

    def score(self, prompt: Prompt, text: str) -> list[SegmentScore] | None:
        if prompt.meta["game"] != "date":
            return None
        first = next(dates_in(text), None)
        return [] if first is None else [SegmentScore(*first, 1.0, "date")]


def dates_in(text: str) -> Iterator[tuple[int, int]]:
    """The character spans of all valid dates, such as "29 Feb 2004"."""
    for match in _DATE.finditer(text):
        day, month, year = match.groups()
        try:
            date(int(year), MONTHS.index(month) + 1, int(day))
        except ValueError:
            continue
        yield match.start(), match.end(3)
