"""The judgement of a response, line by line, and the reward and the metrics that use it."""

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from fgrlhf.configs.strict import Amount
from fgrlhf.rewards.kind import RuleReward
from fgrlhf.text_types import Prompt, SegmentScore

LINE = re.compile(r"\S.*\n?")  # from the first character that is not white space

Label = Literal["right", "wrong", "unknown", "repeated", "size", "extra"]


@dataclass(frozen=True)
class Line:
    """The characters of a line and its judgement; `end` is None if the response ends with it."""

    start: int
    end: int | None
    label: Label


def normal(word: str) -> str:
    """Words are compared without the white space around them and without regard to case."""
    return word.strip().casefold()


def read_lines(prompt: Prompt, text: str) -> list[Line]:
    """Judge the lines of a response. Blank lines are skipped.

    A line is the words between its commas. Its label is the first that applies:

        extra      the response already has as many lines as the solution has groups
        unknown    a word is not in the puzzle
        repeated   a word was in an earlier line, or is in this one twice
        size       the number of words is not that of a group
        right      the words are a group of the solution, in any order
        wrong      they are not

    Lines after the first extra one are not read. A policy thus gains nothing by repeating the words
    of a group, which can be right only once, or by guessing in more lines.

    The line break belongs to the line: until then, another word can follow. In the same way, the
    last line lasts until the end of the response, including the end-of-sequence token.
    """
    groups = prompt.meta["groups"]
    solution = [frozenset(map(normal, group)) for group in groups]
    known = frozenset().union(*solution)
    earlier: set[str] = set()
    lines = []
    for match in LINE.finditer(text):
        words = [normal(word) for word in match[0].split(",")]
        if len(lines) == len(solution):
            label = "extra"
        elif not known.issuperset(words):
            label = "unknown"
        elif len(set(words)) < len(words) or not earlier.isdisjoint(words):
            label = "repeated"
        elif len(words) != len(solution[0]):
            label = "size"
        else:
            label = "right" if frozenset(words) in solution else "wrong"
        earlier.update(words)
        end = match.end() if match[0].endswith("\n") else None
        lines.append(Line(match.start(), end, label))
        if label == "extra":
            break
    return lines


class Groups(RuleReward):
    """A value for every line: the words are a group of the solution, another choice, or invalid.

    With `place: end` the sum of these values is a single value on the last token.
    """

    kind: Literal["groups"] = "groups"
    right: Amount = Field(description="of a line that is a group of the solution")
    wrong: Amount = Field(description="of a valid line that is no group of the solution")
    invalid: Amount = Field(
        description=(
            "of a line with an unknown or repeated word or another number of words, and of the"
            " first line beyond the number of groups"
        )
    )

    def score(self, prompt: Prompt, text: str) -> list[SegmentScore]:
        values = {"right": self.right, "wrong": self.wrong}
        scores = []
        for line in read_lines(prompt, text):
            value = values.get(line.label, self.invalid)
            scores.append(SegmentScore(line.start, line.end, value, line.label))
        return scores


def verified(prompt: Prompt, text: str) -> dict[str, float]:
    """The share of the solution's groups that are right, and two judgements of the whole.

    `valid`: every word of the puzzle is used once, in lines of the right number and size.
    `solved`: valid, and all groups are right.
    """
    labels = [line.label for line in read_lines(prompt, text)]
    count = len(prompt.meta["groups"])
    right = labels.count("right")
    valid = len(labels) == count and right + labels.count("wrong") == count
    return {
        "right_groups": right / count,
        "solved": float(valid and right == count),
        "valid": float(valid),
    }
