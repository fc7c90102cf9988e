"""What a trained pair model gets wrong.

People prefer long answers, and a reward model may learn nothing but that. So the dev pairs are
grouped by the lengths of their responses. The mistakes in which the model was most confident are
listed, to be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fgrlhf.data.comparisons import Comparison
from fgrlhf.words import count_words
from reward_modeling.error_groups import MOST_MISTAKES, Credit, Errors, groups_of

# two responses are similarly long if the longer one has at most this many times the words
SIMILAR = 1.2
# what `compare_lengths` says -> group
LENGTHS = {
    "longer": "better one longer",
    "similarly long": "similarly long",
    "shorter": "better one shorter",
}


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


def pair_errors(
    rows: Sequence[Comparison], prompts: Sequence[int], margins: Sequence[Sequence[float]]
) -> Errors:
    """Analyse the margins of dev pairs.

    Args:
      rows: the comparisons, each with at least one pair.
      prompts: the number of each row's prompt.
      margins: for each row and each of its pairs, the score of the better response minus that of
        the worse one.
    """
    by_length: dict[str, list[Credit]] = {name: [] for name in LENGTHS.values()}
    by_turns: dict[int, list[Credit]] = {}
    mistakes = []
    for row, prompt, row_margins in zip(rows, prompts, margins, strict=True):
        turns = max(1, sum(role == "user" for role, _ in row.prompt.messages))
        for (better, worse), margin in zip(row.pairs, row_margins, strict=True):
            better_text = row.answers[better].text
            worse_text = row.answers[worse].text
            credit = (0.5 if margin == 0 else float(margin > 0), prompt)
            by_length[LENGTHS[compare_lengths(better_text, worse_text)]].append(credit)
            by_turns.setdefault(turns, []).append(credit)
            if margin < 0:
                mistakes.append(
                    Mistake(row.prompt.id, row.prompt.text, better_text, worse_text, -float(margin))
                )
    mistakes.sort(key=lambda mistake: -mistake.margin)
    turn_groups = {turns_name(turns): by_turns[turns] for turns in sorted(by_turns)}
    groups = {"by_length": groups_of(by_length), "by_turns": groups_of(turn_groups)}
    return Errors(groups, tuple(mistakes[:MOST_MISTAKES]))


def compare_lengths(text: str, other: str) -> str:
    """Whether a text has more words than another, similarly many, or fewer."""
    words = count_words(text)
    other_words = count_words(other)
    if max(words, other_words) <= SIMILAR * min(words, other_words):
        return "similarly long"
    return "longer" if words > other_words else "shorter"


def turns_name(turns: int) -> str:
    return "1 turn of the user" if turns == 1 else f"{turns} turns of the user"
