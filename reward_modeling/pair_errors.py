"""What a trained pair model gets wrong: `errors.json` in its folder.

People prefer long answers, and a reward model may learn nothing but that. So the dev pairs are
grouped by the lengths of their responses, and the accuracy of each group is reported. The file also
lists the mistakes in which the model was most confident, to be read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fgrlhf.data.comparisons import Comparison
from fgrlhf.words import count_words

MOST_MISTAKES = 20
# two responses are similarly long if the longer one has at most this many times the words
SIMILAR = 1.2


@dataclass(frozen=True)
class Group:
    """The dev cases of a group: pairs, or segments.

    Attributes:
      accuracy: share of the right ones: of pairs, those whose better response has the higher score;
        equal scores count one half.
    """

    name: str
    cases: int
    accuracy: float


@dataclass(frozen=True)
class Mistake:
    """A pair whose worse response has the higher score.

    Attributes:
      margin: the worse response's score minus the better one's; greater than 0.
    """

    id: str
    prompt: str
    better: str
    worse: str
    margin: float


@dataclass(frozen=True)
class PairErrors:
    """Accuracy by group, and the most confident mistakes, those with the largest margin first."""

    by_length: tuple[Group, ...]
    by_turns: tuple[Group, ...]
    mistakes: tuple[Mistake, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """A line for the user."""
        groups = [
            f"{group.accuracy:.3f} if it is {group.name} (n={group.cases})"
            for group in self.by_length
        ]
        return "accuracy by the length of the better response: " + ", ".join(groups)


def pair_errors(rows: Sequence[Comparison], margins: Sequence[Sequence[float]]) -> PairErrors:
    """Analyse the margins of dev pairs.

    Args:
      rows: the comparisons, each with at least one pair.
      margins: for each row and each of its pairs, the score of the better response minus that of
        the worse one.
    """
    by_length: dict[str, list[float]] = {"longer": [], "similarly long": [], "shorter": []}
    by_turns: dict[int, list[float]] = {}
    mistakes = []
    for row, row_margins in zip(rows, margins, strict=True):
        turns = max(1, sum(role == "user" for role, _ in row.prompt.messages))
        for (better, worse), margin in zip(row.pairs, row_margins, strict=True):
            better_text = row.answers[better].text
            worse_text = row.answers[worse].text
            credit = 0.5 if margin == 0 else float(margin > 0)
            by_length[compare_lengths(better_text, worse_text)].append(credit)
            by_turns.setdefault(turns, []).append(credit)
            if margin < 0:
                mistakes.append(
                    Mistake(row.prompt.id, row.prompt.text, better_text, worse_text, -float(margin))
                )
    mistakes.sort(key=lambda mistake: -mistake.margin)
    turn_groups = {turns_name(turns): by_turns[turns] for turns in sorted(by_turns)}
    return PairErrors(groups(by_length), groups(turn_groups), tuple(mistakes[:MOST_MISTAKES]))


def compare_lengths(text: str, other: str) -> str:
    """Whether a text has more words than another, similarly many, or fewer."""
    words = count_words(text)
    other_words = count_words(other)
    if max(words, other_words) <= SIMILAR * min(words, other_words):
        return "similarly long"
    return "longer" if words > other_words else "shorter"


def turns_name(turns: int) -> str:
    return "1 turn of the user" if turns == 1 else f"{turns} turns of the user"


def groups(credits: Mapping[str, Sequence[float]]) -> tuple[Group, ...]:
    """The groups that have cases, from the credit of each case by group."""
    return tuple(
        Group(name, len(values), float(np.mean(values)))
        for name, values in credits.items()
        if values
    )
