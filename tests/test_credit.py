"""The study of credit: its measures by hand and by brute force, and the configs of its runs."""

from itertools import combinations

import numpy as np
import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import load_config
from fgrlhf.load import load_task
from fgrlhf.task_config import rl_config
from fgrlhf.text_types import SegmentScore
from tasks.experiments.credit import (
    RL,
    SIGNALS,
    CreditSettings,
    agreement,
    kendall,
    on_parts,
    rewards,
)


def tau_of_pairs(a, b):
    """Tau-b from all pairs."""

    def sign(x, y):
        return (x > y) - (x < y)

    total = of_a = of_b = 0
    for i, j in combinations(range(len(a)), 2):
        total += sign(a[i], a[j]) * sign(b[i], b[j])
        of_a += a[i] != a[j]
        of_b += b[i] != b[j]
    return total / (of_a * of_b) ** 0.5 if of_a and of_b else None


def test_kendalls_tau():
    assert kendall([1, 2, 3], [5, 6, 9]) == 1 and kendall([1, 2, 3], [9, 6, 5]) == -1
    assert kendall([1, 2, 2], [1, 3, 2]) == pytest.approx(2 / 6**0.5)
    assert kendall([1, 1], [1, 2]) is None and kendall([], []) is None
    r = np.random.default_rng(0)
    for _ in range(50):
        a, b = r.integers(0, 4, 7).tolist(), r.integers(0, 4, 7).tolist()
        assert kendall(a, b) == pytest.approx(tau_of_pairs(a, b))


def test_a_part_has_the_value_of_the_segment_in_which_it_ends():
    parts = [(0, 4), (5, 9), (10, 14)]
    sentences = [SegmentScore(0, 9, 2.0, ""), SegmentScore(10, 14, 3.0, "")]
    assert on_parts(sentences, parts) == [2, 2, 3]
    assert on_parts([SegmentScore(0, None, 0.5, "")], parts) == [0.5] * 3
    assert on_parts(sentences[:1], parts) == [2, 2, 0]


def test_agreement_by_hand():
    right = [[True, False], [True, True, False]]
    parts = [[0.5, 0.0], [0.25, 0.5, -0.25]]
    found = agreement([[1.0, 0.0], [0.0, 2.0, 0.5]], right, parts)
    assert found["answers"] == [2, 2, 2]
    assert found["within"]["mean"] == pytest.approx((1 + 0.5) / 2)
    assert found["tau"]["mean"] == pytest.approx((1 + 1 / 3) / 2)
    constant = agreement([[1.0, 1.0], [0.0, 0.0, 0.0]], right, parts)
    assert constant["within"]["mean"] == 0.5 and constant["tau"]["mean"] == 0
    assert agreement(parts, right, parts)["tau"]["mean"] == 1
    rounded = [[0.1 + 0.2, 0.3, 0.0]]  # two equal parts
    of_ties = agreement([[1.0, 1.0, 0.0]], [[True, True, False]], rounded)
    assert of_ties["tau"]["mean"] == 1
    all_right = agreement([[1.0, 0.0]], [[True, True]], [[0.5, 0.5]])
    assert all_right["within"] == all_right["tau"] == "no answer has parts that differ"


def test_signals_are_checked_before_anything_runs():
    for signals in ("whole,foo", "whole,whole"):
        with pytest.raises(UserError, match="name some of whole, segment, .*, each at most once"):
            _ = CreditSettings(signals=signals).trained


def test_every_signal_has_a_config_that_is_accepted(tmp_path, monkeypatch):
    for name in ("OUTPUT_DIR", "DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    base = tmp_path / "DPO-of-BASE"  # replaced once only
    settings = CreditSettings(base_dir=str(base), output_dir=str(tmp_path / "out"))
    schema = rl_config(load_task("qa_feedback"))
    assert set(settings.trained) <= set(SIGNALS)
    assert f"ckpt: {base}/baseline_rm" in rewards(settings, ["whole"])
    for names in ([name] for name in SIGNALS), [list(SIGNALS)]:
        for signals in names:
            given = [f"reward={rewards(settings, signals)}", "logging.save_dir=out"]
            config = load_config(schema, RL, given)
            assert len(config.reward) == len(signals) + ("marks" in signals)
