"""The episodes after which a run reaches the final level of another."""

import pytest

from fgrlhf.pipeline.efficiency import Efficiency, efficiency
from fgrlhf.pipeline.scores import Point


def curve(*scores: float) -> list[Point]:
    return [Point(100.0 * i, 0.0, score, None) for i, score in enumerate(scores)]


def test_the_first_evaluation_at_the_level_counts():
    fast, slow = [curve(0.1, 0.5, 0.3, 0.7)], [curve(0.1, 0.2, 0.4, 0.45)]
    assert efficiency(fast, slow) == Efficiency(100.0, 100.0, 100.0)
    assert efficiency(slow, fast) == Efficiency(None, None, None)


def test_the_direction_is_that_of_the_metric_and_not_of_the_baseline():
    """A baseline that became worse is reached at once."""
    worse, better = [curve(0.5, 0.4, 0.3)], [curve(0.5, 0.6, 0.7)]
    assert efficiency(better, worse).episodes == 0.0
    assert efficiency(better, worse, higher_is_better=False).episodes is None


def test_the_mean_over_seeds_reaches_the_level():
    slow = [curve(0.0, 0.1, 0.2, 0.4), curve(0.0, 0.3, 0.4, 0.6)]  # the mean ends at .5
    fast = [curve(0.0, 0.6, 0.8, 0.9), curve(0.0, 0.2, 0.6, 0.9)]  # means 0, .4, .7, .9
    assert efficiency(fast, slow) == Efficiency(200.0, 100.0, 200.0)
    assert efficiency(slow, slow) == Efficiency(300.0, 300.0, 300.0)
    assert efficiency(slow, fast) == Efficiency(None, None, None)


def test_lower_scores_can_be_better():
    slow, fast = [curve(0.9, 0.8, 0.3)], [curve(0.9, 0.2, 0.1)]
    lower = {"higher_is_better": False}
    assert efficiency(fast, slow, **lower) == Efficiency(100.0, 100.0, 100.0)


def test_a_bound_may_be_never():
    """One of two seeds never reaches it: the mean of samples of that seed alone does not either."""
    slow = [curve(0.0, 0.5), curve(0.0, 0.5)]
    mixed = [curve(0.0, 0.9), curve(0.0, 0.2)]
    assert efficiency(mixed, slow) == Efficiency(100.0, 100.0, None)


def test_a_seed_that_stopped_early_keeps_its_last_score():
    """The baseline ends at (.9 + .1) / 2 = .5. Its fourth evaluations have a mean of only .2."""
    rising = curve(*(0.1 * i for i in range(10)))  # .9 after 900 episodes
    stopped = [*curve(0.0, 0.1, 0.1), Point(250.0, 0.0, 0.1, None)]  # the last one is irregular
    reached = curve(0.0, 0.2, 0.25, 0.3, 0.45, 0.5, 0.6)
    for baseline in ([rising, stopped], [stopped, rising]):  # no seed is special
        assert efficiency([reached, reached], baseline).episodes == 500.0
        assert efficiency(baseline, baseline).episodes == 900.0
    # (.1 + .4) / 2 = .25 at an evaluation that only the second seed has
    first, second = curve(0.0, 0.1), [*curve(0.0, 0.1), Point(250.0, 0.0, 0.4, None)]
    level = [curve(0.0, 0.25)] * 2
    assert efficiency([first, second], level) == Efficiency(250.0, 250.0, None)


def test_runs_of_different_seeds_are_not_compared():
    with pytest.raises(ValueError, match="the same seeds"):
        efficiency([curve(0.1)], [curve(0.1)] * 2)
    with pytest.raises(ValueError, match="at least one evaluation"):
        efficiency([[]], [curve(0.1)])
