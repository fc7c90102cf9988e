"""The part of a score that belongs to each segment: by hand, by brute force, and as a reward."""

from collections.abc import Callable
from itertools import permutations, product
from math import exp, log

import pytest

from fgrlhf.rewards import attribution
from fgrlhf.rewards.attribution import EXACT, READINGS, coalitions, shapley_values, with_segments
from fgrlhf.rewards.scored import ScorerReward
from fgrlhf.text_types import Prompt

TEXT = "One. Two! Three? "
SPANS = [(0, 4), (5, 9), (10, 16)]


def all_orders(score: Callable[[int], float], count: int) -> list[float]:
    """The mean over every order of what a segment adds to those before it."""
    values = [0.0] * count
    every = list(permutations(range(count)))
    for order in every:
        mask = 0
        for j in order:
            values[j] += (score(mask | 1 << j) - score(mask)) / len(every)
            mask |= 1 << j
    return values


def curved(mask: int) -> float:
    """A game with interactions of all sizes."""
    total = sum((j + 1.5) ** 2 for j in range(mask.bit_length()) if mask >> j & 1)
    return log(1 + total) - 0.25 * (mask & 0b101 == 0b101)


def test_a_response_with_some_of_its_segments():
    texts = [with_segments(TEXT, SPANS, mask) for mask in range(8)]
    expected = ["", "One.", "Two!", "One. Two!", "Three? ", "One. Three? ", "Two! Three? ", TEXT]
    assert texts == expected
    steps = [with_segments("A.##B.##C.", [(0, 2), (4, 6), (8, 10)], mask) for mask in range(8)]
    assert steps == ["", "A.", "B.", "A.##B.", "C.", "A.##C.", "B.##C.", "A.##B.##C."]


@pytest.mark.parametrize("count", [1, 2, 5, EXACT])
def test_few_segments_have_exact_values(count):
    scores = {mask: curved(mask) for mask in coalitions(count)}
    assert len(scores) == 2**count
    assert shapley_values(scores, count) == pytest.approx(all_orders(curved, count), abs=1e-12)


@pytest.mark.parametrize("count", [EXACT, EXACT + 1, 11, 40])
def test_the_axioms_also_hold_for_a_sample_of_orders(count):
    """They add up; a segment without effect has 0; where effects only add up, each has its own."""
    masks = coalitions(count)
    assert coalitions(count) == masks and len(masks) <= max(2**EXACT, 16 * count)
    of_curve = shapley_values({mask: curved(mask) for mask in masks}, count)
    whole = (1 << count) - 1
    assert sum(of_curve) == pytest.approx(curved(whole) - curved(0), abs=1e-9)
    without_last = shapley_values({mask: curved(mask & whole >> 1) for mask in masks}, count)
    assert without_last[-1] == pytest.approx(0, abs=1e-12)

    def added(mask: int) -> float:
        return sum(1.0 + j for j in range(count) if mask >> j & 1)

    assert shapley_values({mask: added(mask) for mask in masks}, count) == pytest.approx(
        [1.0 + j for j in range(count)]
    )


@pytest.mark.parametrize("count", [7, 10])
def test_effects_of_pairs_are_exact_with_reversed_orders(count):
    """Half of what two segments do together belongs to each."""
    weights = [[(i * 7 + j * 3) % 5 - 2.0 for j in range(count)] for i in range(count)]

    def pairs(mask: int) -> float:
        kept = [j for j in range(count) if mask >> j & 1]
        return sum(weights[i][j] for i in kept for j in kept if i <= j)

    values = shapley_values({mask: pairs(mask) for mask in coalitions(count)}, count)
    for j in range(count):
        together = sum(weights[min(i, j)][max(i, j)] for i in range(count) if i != j)
        assert values[j] == pytest.approx(weights[j][j] + together / 2)


def test_a_sample_of_orders_comes_close_to_all(monkeypatch):
    exact = shapley_values({mask: curved(mask) for mask in coalitions(6)}, 6)
    monkeypatch.setattr(attribution, "EXACT", 0)
    assert len(attribution.orders(6)) == 16
    sampled = shapley_values({mask: curved(mask) for mask in coalitions(6)}, 6)
    assert sampled != exact and sampled == pytest.approx(exact, abs=0.15)


class SaysTwo:
    """1 for a text with `Two`, however often, and .5 for one that begins with `One`."""

    def score(self, prompts, texts):
        return [("Two" in text) + 0.5 * text.startswith("One") for text in texts]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ("segment", [0.5, 1, 1]),
        ("prefix", [0.5, 1.5, 1.5]),
        ("increment", [0.5, 1, 0]),
        ("without", [0.5, 0, 0]),
        ("shapley", [0.5, 0.5, 0.5]),
    ],
)
def test_two_segments_that_say_the_same(reads, expected):
    reward = ScorerReward(SaysTwo(), "sentence", reads, scale=2)
    (scores,) = reward.segment_scores([Prompt("0", "p")], ["One. Two! Two?"])
    assert [(score.start, score.end) for score in scores] == [(0, 4), (5, 9), (10, 14)]
    assert [score.value for score in scores] == pytest.approx([2 * value for value in expected])


@pytest.mark.parametrize("reads", READINGS)
def test_a_blank_response_is_not_scored(reads):
    reward = ScorerReward(SaysTwo(), "sentence", reads)
    assert reward.segment_scores([Prompt("0", "p")] * 2, ["", " \n"]) == [[], []]


def policy_gradient(reads: str, score: Callable[[str], float]) -> list[float]:
    """E[sum_t grad log pi(y_t) sum_{k >= t} r_k] of a policy that writes two segments, exactly.

    Each segment is `A.` or `B.`, with the probabilities sigmoid(theta) and 1 - sigmoid(theta);
    theta[0] is of the first segment, theta[1] and theta[2] of the second after `A.` and after `B.`.
    """
    theta = [0.25, -0.5, 0.75]
    p = [1 / (1 + exp(-value)) for value in theta]
    gradient = [0.0] * 3
    for first, second in product((0, 1), repeat=2):
        text = f"{'AB'[first]}. {'AB'[second]}."
        reading = READINGS[reads]
        spans = [(0, 2), (3, 5)]
        scores = [score(read) for read in reading.texts(text, spans)]
        rewards = [part for _, part in reading.parts(scores, 2)]
        places = (0, 1 + first)
        log_gradients = [
            1 - p[k] if not chosen else -p[k] for k, chosen in zip(places, (first, second))
        ]
        probability = 1.0
        for k, chosen in zip(places, (first, second)):
            probability *= 1 - p[k] if chosen else p[k]
        for t, k in enumerate(places):
            gradient[k] += probability * log_gradients[t] * sum(rewards[t:])
    return gradient


def test_only_increments_keep_the_policy_gradient():
    """A part must not depend on what is written later: that decision is not credited with it."""
    table = {
        "": 0.0,
        "A.": 1.0,
        "B.": 0.25,
        "A. A.": 0.5,
        "A. B.": 2.0,
        "B. A.": 1.5,
        "B. B.": 0.125,
    }

    def at_the_end(text: str) -> float:
        return table[text] if len(text) == 5 else 0.0

    true = policy_gradient("increment", at_the_end)  # all at the last segment
    assert policy_gradient("increment", table.__getitem__) == pytest.approx(true, abs=1e-12)
    for reads in ("shapley", "without"):
        of_parts = policy_gradient(reads, table.__getitem__)
        assert max(abs(a - b) for a, b in zip(of_parts, true)) > 0.02
