"""A metric of two policies on the same prompts."""

import pytest

from fgrlhf.metrics.paired import by_prompt, paired_difference
from fgrlhf.stats import paired_bootstrap


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
