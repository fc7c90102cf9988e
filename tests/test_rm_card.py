"""What a reward model's folder says about its dev figures: intervals, reasons, notes, README.md."""

import json

import numpy as np
import pytest

from fgrlhf.models.provenance import value_text
from fgrlhf.reward_models.prefix import Prefix
from reward_modeling.card import notes_of
from reward_modeling.judged import (
    Evaluations,
    Predictions,
    prompts_of,
    selection_optimism,
    split_figures,
)


def judged(right: np.ndarray, prompts: np.ndarray | None = None) -> Predictions:
    positive = np.arange(right.size) % 3 == 0
    scores = np.where(right == positive, 0.9, 0.1)
    numbers = np.arange(right.size) if prompts is None else prompts
    return Predictions("segments", scores, positive, numbers)


def test_intervals_are_over_prompts():
    """Ten segments of a prompt that are right or wrong together are one trial."""
    right = np.repeat(np.random.default_rng(0).random(60) < 0.7, 10)
    apart = judged(right).figures()
    together = judged(right, np.repeat(np.arange(60), 10)).figures()
    for name in ("accuracy", "error_f1", "ok_recall", "auc"):
        one, many = together[name], apart[name]
        assert not isinstance(one, str) and not isinstance(many, str)
        assert one.mean == many.mean and one.high - one.low > 2 * (many.high - many.low)


def test_a_figure_that_was_not_measured_has_a_reason():
    none = Predictions("segments", np.full(30, 0.2), np.zeros(30, bool), np.arange(30))
    shown = split_figures(none.figures())
    assert shown["intervals"]["accuracy"]["mean"] == 1 and "auc" not in shown["intervals"]
    assert shown["reasons"]["auc"].startswith("undefined: it needs cases of both kinds, and all 30")
    assert shown["reasons"]["error_recall"] == "undefined: there is none"
    assert shown["reasons"]["error_precision"] == "undefined: none is predicted"
    with pytest.raises(ValueError, match="of the same cases"):
        Predictions("pairs", np.zeros(3), np.zeros(2, bool), np.arange(3))


def test_rows_with_one_prompt():
    first, second = (Prefix(tuple(text.split())) for text in ("who sees Anna", "who sees Ben"))
    assert prompts_of([first, second, first]) == [0, 1, 0]
    # words before every response are no prompt
    assert prompts_of([first, first, first]) == prompts_of([Prefix(())] * 3) == [0, 1, 2]


# ---- the choice of the checkpoint ----------------------------------------------------------------


def evaluations(seed: int, number: int, prompts: int, alike: float) -> np.ndarray:
    """Right answers [K, Q] of checkpoints that are all right with probability .7."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=prompts) * alike**0.5
    own = rng.normal(size=(number, prompts)) * (1 - alike) ** 0.5
    return (shared + own < 0.5244).astype(float)


@pytest.mark.parametrize("number, prompts", [(5, 50), (20, 50), (10, 200)])
def test_the_corrected_accuracy_of_the_best_of_several_checkpoints(number, prompts):
    """Of equal checkpoints, the best one's dev accuracy is too high; the corrected one is not."""
    raw, corrected = [], []
    for seed in range(150):
        right = evaluations(seed, number, prompts, alike=0.7)
        estimate = selection_optimism(right, np.ones(prompts))
        assert estimate is not None
        raw.append(right.mean(1).max() - 0.7)
        corrected.append(raw[-1] - estimate)
    error = np.std(raw) / len(raw) ** 0.5
    assert np.mean(raw) > 10 * error
    assert abs(np.mean(corrected)) < 2 * error


def test_a_clear_winner_is_hardly_optimistic():
    rng = np.random.default_rng(0)
    right = np.stack([rng.random(200) < p for p in (0.4, 0.5, 0.95)]).astype(float)
    estimate = selection_optimism(right, np.ones(200))
    assert estimate is not None and estimate < 0.005
    assert selection_optimism(right[:1], np.ones(200)) is None
    assert selection_optimism(right[:, :3], np.ones(3)) is None


def test_evaluations_are_kept_for_a_run_that_continues():
    first = Evaluations()
    for step in (10, 20):
        first.add(step, judged(np.arange(40) % 10 < 5 + step // 10))
    again = Evaluations()
    again.restore(json.loads(json.dumps(first.state())))
    for evaluations in (first, again):
        evaluations.add(30, judged(np.arange(40) % 10 < 8))
    assert list(again.right) == [10, 20, 30]
    assert again.right == first.right and again.optimism() == first.optimism()


# ---- notes and the card --------------------------------------------------------------------------


def test_notes_name_few_rows_perfect_figures_and_the_choice():
    choice = {"evaluations": 8, "optimism": 0.034, "accuracy": 0.966}
    chosen, few, perfect = notes_of(judged(np.ones(30, bool)), choice)
    assert "out of 8 evaluations" in chosen and "about 0.034 of accuracy" in chosen
    assert "Corrected, the accuracy is 0.966." in chosen
    assert few.startswith("30 dev prompts are few")
    assert perfect.startswith("all 30 segments are right") and "0.8" in perfect
    assert notes_of(judged(np.arange(300) < 290), {"evaluations": 1, "optimism": None}) == []
    unknown = notes_of(judged(np.arange(300) < 290), {"evaluations": 3, "optimism": None})
    assert len(unknown) == 1 and "about" not in unknown[0]


def test_values_of_a_card():
    assert value_text({"mean": 0.8, "low": 0.75, "high": 0.85}) == "0.800 [0.750, 0.850]"
    assert value_text({"mean": 0.1, "low": -0.02, "high": 0.2}, True) == "+0.100 [-0.020, +0.200]"
    assert value_text({"mean": 0.8, "low": None, "high": None}) == "0.800"
