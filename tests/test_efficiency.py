"""The episodes after which a run reaches the final level of another."""

import pytest

from fgrlhf.pipeline.efficiency import Reached, episodes_to_reach
from fgrlhf.pipeline.experiments import Point


def curve(*scores: float) -> list[Point]:
    return [Point(100.0 * i, 0.0, score, None) for i, score in enumerate(scores)]


def test_the_first_evaluation_at_the_level_counts():
    fast, slow = curve(0.1, 0.5, 0.3, 0.7), curve(0.1, 0.2, 0.4, 0.45)
    assert episodes_to_reach(fast, slow, True) == Reached(0.45, 100.0, 300.0)
    assert episodes_to_reach(slow, fast, True) == Reached(0.7, None, 300.0)


def test_lower_can_be_better():
    fast, slow = curve(0.5, 0.3, 0.2), curve(0.5, 0.4, 0.3)
    assert episodes_to_reach(fast, slow, False) == Reached(0.3, 100.0, 200.0)


def test_equal_curves_reach_it_at_the_end():
    same = curve(0.1, 0.2, 0.3)
    assert episodes_to_reach(same, same, True).episodes == 200.0


def test_a_curve_without_points_is_an_error():
    with pytest.raises(ValueError, match="at least one evaluation"):
        episodes_to_reach([], curve(0.1), True)
