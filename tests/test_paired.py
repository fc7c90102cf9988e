"""A metric of two policies on the same prompts."""

import pytest

from fgrlhf.metrics.paired import by_prompt, paired_difference, paired_gain
from fgrlhf.stats import paired_bootstrap, paired_ratio_bootstrap


def test_responses_are_averaged_by_prompt():
    rows = [
        {"id": "a", "m": 1.0},
        {"id": "b", "m": 5.0},
        {"id": "a", "m": 2.0},
        {"id": "a", "m": None},  # not applicable
        {"id": "c", "m": None},
        {"id": "d"},
    ]
    assert by_prompt(rows, "m") == {"a": 1.5, "b": 5.0}
    assert by_prompt(rows, "other") == {}


def test_differences_are_of_shared_prompts():
    a = {"x": 1.0, "y": 2.0, "only a": 9.0}
    b = {"y": 0.5, "x": 0.0, "only b": 9.0}
    difference = paired_difference(a, b)
    assert difference == paired_bootstrap([1.0, 2.0], [0.0, 0.5])
    assert difference is not None and difference.mean == pytest.approx(1.25)
    assert paired_difference({"x": 1.0}, {"y": 1.0}) is None


def test_the_gain_in_a_ratio_is_that_of_all_segments():
    def rows(counts):
        return [
            {"id": prompt, "r1/error_free": good, "r1/segments": total}
            for prompt, good, total in counts
        ]

    # two responses to x; z was answered by one policy only
    a = rows([("x", 1, 2), ("x", 3, 3), ("y", 0, 5), ("z", 9, 9)])
    b = rows([("y", 1, 2), ("x", 0, 2)])
    gain = paired_gain(a, b, "r1/ratio")
    assert gain is not None and gain.mean == pytest.approx(4 / 10 - 1 / 4)
    assert gain == paired_ratio_bootstrap(([4, 0], [5, 5]), ([0, 1], [2, 2]))
    assert paired_gain(a, b, "r2/ratio") is None
    plain = [{"id": "x", "m": 1.0}], [{"id": "x", "m": 3.0}]
    assert paired_gain(*plain, "m") == paired_difference({"x": 1.0}, {"x": 3.0})
