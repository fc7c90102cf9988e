"""Rewards of two games that a random model can learn: numbers that increase, and a date.

Both are the synthetic tasks of RL4LMs (Ramamurthy et al. 2023). A response to a prompt of the other
game gets no reward at all: None, "not applicable".
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Literal

from pydantic import Field

from fgrlhf.config import Count
from fgrlhf.reward_models.kind import RewardContext, RewardKind
from fgrlhf.types import Prompt, SegmentScore

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WORD = re.compile(r"\S+")
_DATE = re.compile(rf"(?=\b(\d{{1,2}}) ({'|'.join(MONTHS)}) (\d{{4}})\b)")

Scores = list[list[SegmentScore] | None]


class IncreasingReward:
    """1 / max(words, length) for each number of the increasing run that the response begins with.

    The first number must be above the prompt's. The run ends at the first word that is no number or
    no larger one, so a response of exactly `length` increasing numbers gets 1 in all.
    """

    def __init__(self, length: int):
        self.length = length

    def segment_scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        return [self._scores(prompt, text) for prompt, text in zip(prompts, texts)]

    def _scores(self, prompt: Prompt, text: str) -> list[SegmentScore] | None:
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


class Increasing(RewardKind):
    """The share of a response that is an increasing run of numbers."""

    kind: Literal["increasing"] = "increasing"
    length: Count = Field(description="numbers wanted")

    def build(self, context: RewardContext) -> IncreasingReward:
        return IncreasingReward(self.length)


def dates_in(text: str) -> Iterator[tuple[int, int]]:
    """The characters of every date, such as "29 Feb 2004", that is in the calendar."""
    for match in _DATE.finditer(text):
        day, month, year = match.groups()
        try:
            date(int(year), MONTHS.index(month) + 1, int(day))
        except ValueError:
            continue
        yield match.start(), match.end(3)


class DateReward:
    """1 for a response with a date, on the first one; 0 for a response without."""

    def segment_scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        results: Scores = []
        for prompt, text in zip(prompts, texts):
            if prompt.meta["game"] != "date":
                results.append(None)
                continue
            first = next(dates_in(text), None)
            results.append([] if first is None else [SegmentScore(*first, 1.0, "date")])
        return results


class Date(RewardKind):
    """Whether a response holds a date of the calendar."""

    kind: Literal["date"] = "date"

    def build(self, context: RewardContext) -> DateReward:
        return DateReward()
