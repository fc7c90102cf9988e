"""What a pair model gets wrong: groups by length and turns, and the most confident mistakes."""

import numpy as np
import pytest

from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.text_types import Prompt
from reward_modeling.error_groups import MOST_MISTAKES, Group
from reward_modeling.pair_errors import Mistake, compare_lengths, pair_errors
from reward_modeling.run_pref_rm import margins_of_better

DIALOG = (("user", "Hi."), ("assistant", "Hi!"), ("user", "Why?"))


def row(name: str, *answers: str, pairs=((0, 1),), messages=()) -> Comparison:
    prompt = Prompt(name, f"prompt {name}", messages=messages)
    return Comparison(prompt, tuple(Answer(answer) for answer in answers), pairs)


def figures(groups: tuple[Group, ...]) -> list[tuple[str, int, float]]:
    return [(group.name, group.cases, group.accuracy.mean) for group in groups]


def test_groups_and_mistakes_by_hand():
    rows = [
        row("a", "one two three", "one"),
        row("b", "one", "one two three", "one two", pairs=((0, 1), (2, 0), (2, 1))),
        row("c", "one two", "two one", messages=DIALOG),
    ]
    errors = pair_errors(rows, [0, 1, 2], [[2.0], [-0.5, 1.0, -3.0], [0.0]])
    assert figures(errors.groups["by_length"]) == [
        ("better one longer", 2, 1.0),
        ("similarly long", 1, 0.5),  # equal scores
        ("better one shorter", 2, 0.0),
    ]
    assert figures(errors.groups["by_turns"]) == [
        ("1 turn of the user", 4, 0.5),
        ("2 turns of the user", 1, 0.5),
    ]
    assert errors.mistakes == (
        Mistake("b", "prompt b", "one two", "one two three", 3.0),
        Mistake("b", "prompt b", "one", "one two three", 0.5),
    )
    assert errors.describe() == (
        "accuracy by length: better one longer 1.000 (n=2), similarly long 0.500 (n=1), better one"
        " shorter 0.000 (n=2)"
    )
    first = errors.as_dict()["by_length"][0]
    accuracy = {"mean": 1.0, "low": None, "high": None}
    assert first == {"name": "better one longer", "cases": 2, "accuracy": accuracy}


@pytest.mark.parametrize(
    "words, others, expected",
    [
        (12, 10, "similarly long"),
        (13, 10, "longer"),
        (10, 13, "shorter"),
        (0, 0, "similarly long"),
        (1, 0, "longer"),
    ],
)
def test_lengths(words, others, expected):
    assert compare_lengths("w " * words, "w " * others) == expected


def test_only_the_most_confident_mistakes_are_kept():
    rows = [row(str(i), "good", "bad") for i in range(MOST_MISTAKES + 5)]
    errors = pair_errors(rows, range(len(rows)), [[-float(i + 1)] for i in range(len(rows))])
    assert [mistake.margin for mistake in errors.mistakes[:2]] == [25.0, 24.0]
    assert len(errors.mistakes) == MOST_MISTAKES


def test_margins_of_the_better_response():
    margins_QN = np.array([[2.0, 2.0, -1.0], [-3.0, 0.0, 0.0]])
    labels_QN = np.array([[0, 1, 1], [1, -100, -100]])
    assert margins_of_better(margins_QN, labels_QN) == [[2.0, -2.0, 1.0], [3.0]]
