"""The accuracy of groups of dev cases: intervals over prompts."""

import json

import numpy as np

from fgrlhf.stats import ratio_interval
from reward_modeling.error_groups import Errors, Group, groups_of


def test_the_interval_of_a_group_is_over_its_prompts():
    """Cases of one prompt count as one unit, and prompts without a case in the group as none."""
    rng = np.random.default_rng(0)
    right = np.repeat(rng.random(30) < 0.7, 4).astype(float)  # all four cases of a prompt agree
    prompts = np.repeat(np.arange(30), 4)
    cases = list(zip(right.tolist(), prompts.tolist(), strict=True))
    (group,) = groups_of({"all": cases, "none": []})
    assert (group.name, group.cases) == ("all", 120)
    of_prompts = right.reshape(30, 4).sum(1)
    expected = ratio_interval(of_prompts, [4] * 30)
    assert group.accuracy == expected and expected.has_bounds
    (independent,) = groups_of({"all": [(value, i) for i, (value, _) in enumerate(cases)]})
    width = group.accuracy.high - group.accuracy.low
    assert width > 1.5 * (independent.accuracy.high - independent.accuracy.low)


def test_a_group_of_few_prompts_has_no_interval():
    (group,) = groups_of({"rare": [(1.0, "a"), (0.5, "a"), (0.0, "b")]})
    assert group == Group("rare", 3, group.accuracy)
    expected = {"name": "rare", "cases": 3, "accuracy": {"mean": 0.5, "low": None, "high": None}}
    assert group.as_dict() == expected
    errors = Errors({"by_label": (group,)}, ())
    assert errors.describe() == "accuracy by label: rare 0.500 (n=3)"
    written = json.dumps(errors.as_dict(), allow_nan=False)
    assert json.loads(written) == {"by_label": [expected], "mistakes": []}
