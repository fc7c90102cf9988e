"""Linear baselines of reward models: features by hand, and what they can and cannot predict."""

import math
import random

import numpy as np
import pytest
import rm_helpers as rm

from fgrlhf.reward_models.prefix import RMText
from fgrlhf.reward_models.text_features import TEXT_FEATURES, segment_features
from reward_modeling import baselines as fitted
from reward_modeling.baselines import against, comparison, verdict
from reward_modeling.judged import Predictions


def segment_baselines(*rows):
    return {name: judged.numbers() for name, judged in fitted.segment_baselines(*rows).items()}


def pair_baselines(*rows):
    return {name: judged.numbers() for name, judged in fitted.pair_baselines(*rows).items()}


def test_features_by_hand():
    prefix = rm.prefix("question: who sees Anna ?", "context: Anna sees 3 dogs in Rome .")
    segments = (rm.words("The dogs in Rome,"), rm.words("in Paris 7 dogs dogs."), ())
    first, second, blank = segment_features(RMText(prefix, segments))
    assert len(first) == len(second) == len(blank) == len(TEXT_FEATURES)
    assert first == (0, pytest.approx(math.log(5)), 0, 3 / 4, 2 / 3, 0, 0, 0, 0, 0)
    # `paris` and 7 are new, `in` and `dogs` (twice) are in the context and in the first segment
    expected = (1 / 2, pytest.approx(math.log(6)), 0, 3 / 5, 0, 1, 1, 3 / 5, 1 / 5, 0)
    assert second == expected
    assert blank == (1, 0, 0, 0, 0, 0, 0, 0, 0, 1)


def test_words_of_the_question_are_not_words_of_the_context():
    prefix = rm.prefix("question: a red cat", "context: a blue dog")
    ((_, _, question, context, *_),) = segment_features(RMText(prefix, (rm.words("red dog"),)))
    assert (question, context) == (1 / 2, 1 / 2)


def segment_rows(n: int, seed: int):
    """Segments that name a number are wrong, unless the number is in the context."""
    draw = random.Random(seed)
    rows = []
    for _ in range(n):
        prefix = rm.prefix("question: how many", "context: there are 3 cats and 5 dogs")
        numbers = [draw.choice([3, 5, 7, 9]) for _ in range(3)]
        segments = tuple(rm.words(f"there are {number} birds.") for number in numbers)
        wrong: list[bool | None] = [number > 5 for number in numbers]
        wrong[draw.randrange(3)] = None
        rows.append((RMText(prefix, segments), wrong))
    return rows


def test_features_predict_what_the_context_does_not_support():
    results = segment_baselines(segment_rows(40, 0), segment_rows(20, 1))
    assert list(results) == ["majority", "features", "tfidf"]
    assert results["features"]["accuracy"] == results["features"]["auc"] == 1
    assert results["features"]["error_f1"] == 1
    judged = [x for _, labels in segment_rows(20, 1) for x in labels if x is not None]
    share = sum(judged) / len(judged)
    assert results["majority"]["accuracy"] in (pytest.approx(share), pytest.approx(1 - share))
    assert results["majority"]["auc"] == 0.5


def test_baselines_are_the_same_every_time():
    rows = segment_rows(15, 0), segment_rows(8, 1)
    assert segment_baselines(*rows) == segment_baselines(*rows)


def test_a_single_label_leaves_the_majority_only():
    rows = [(text, [False] * 3) for text, _ in segment_rows(4, 0)]
    results = segment_baselines(rows, rows)
    # segments without any error have no AUC and no F1: nothing was measured
    assert results == {"majority": {"accuracy": 1, "auc": None, "error_f1": None}}


def pair_rows(n: int, seed: int, swap: bool = False):
    """The longer of two responses is better. `swap` lists them in the other order."""
    draw = random.Random(seed)
    rows = []
    for _ in range(n):
        lengths = draw.sample(range(2, 12), 2)
        better = 0 if lengths[0] > lengths[1] else 1
        texts = []
        for length in lengths:
            texts.append(RMText(rm.prefix("question: why"), (("a", "dog") * length,)))
        if swap:
            texts.reverse()
            better = 1 - better
        rows.append((texts, ((better, 1 - better),)))
    return rows


def test_pairs_by_the_difference_of_features():
    results = pair_baselines(pair_rows(30, 0), pair_rows(20, 1))
    assert results["features"] == {"accuracy": 1, "auc": 1}
    swapped = pair_baselines(pair_rows(30, 0, swap=True), pair_rows(20, 1, swap=True))
    assert swapped["features"] == results["features"]
    assert results["length"] == {"accuracy": 1, "auc": 1}


@pytest.mark.parametrize("place", [0, 1])
def test_rows_that_list_the_better_response_in_one_place(place):
    """Their order is not a label, so it predicts nothing."""

    def sorted_rows(n, seed):
        rows = []
        for texts, ((better, worse),) in pair_rows(n, seed):
            listed = [texts[better], texts[worse]]
            rows.append((listed[::-1] if place else listed, ((place, 1 - place),)))
        return rows

    results = pair_baselines(sorted_rows(30, 0), sorted_rows(20, 1))
    assert results["majority"] == {"accuracy": 0.5, "auc": 0.5}
    assert results["features"] == results["length"] == {"accuracy": 1, "auc": 1}


def judged(right: float, cases: int = 200, kind: str = "segments") -> Predictions:
    """Predictions of which this share is right; every case has a prompt of its own."""
    positive = np.arange(cases) % 2 == 0
    is_right = np.arange(cases) < round(right * cases)
    scores = np.where(is_right == positive, 0.9, 0.1)
    return Predictions(kind, scores - (0.5 if kind == "pairs" else 0), positive, np.arange(cases))


def test_a_difference_is_called_one_only_if_its_interval_excludes_zero():
    """`0.003 above the best of them` would be printed for any difference."""
    features = {"majority": judged(0.5), "features": judged(0.7)}
    assert "is 0.200 [0.1" in verdict(judged(0.9), features)
    text = verdict(judged(0.705), features)
    assert text.startswith(
        "This reward model is not distinguishable from a linear model of ten hand-made features"
    )
    assert "difference 0.005 [" in text and "above" not in text
    for right in (0.7, 0.695):
        assert "is not distinguishable from" in verdict(judged(right), features)
    text = verdict(judged(0.5), features)
    assert "is LESS accurate than a linear model of ten hand-made features (model.text_f" in text
    text = comparison(judged(0.9), features)
    assert len(text.splitlines()) == 2, "the verdict has its own line"
    assert "features accuracy 0.700, AUC" in text
    perfect = verdict(judged(1.0), {"features": judged(1.0)})
    assert perfect.endswith("are right on every one of these rows")
    # too few rows for an interval
    few = verdict(judged(0.9, 8), {"features": judged(0.7, 8)})
    assert "not distinguishable" in few and "8 of at least 10 units" in few


def test_differences_are_paired_over_prompts():
    model, baseline = judged(0.9), judged(0.7)
    got = against(model, {"tfidf": baseline})["tfidf"]
    assert got["difference"]["mean"] == pytest.approx(0.2) and got["accuracy"] == 0.7
    # the same two hundred cases of twenty prompts: ten alike in each
    prompts = np.arange(200) // 10
    alike = [Predictions(x.kind, x.scores_N, x.positive_N, prompts) for x in (model, baseline)]
    clustered = against(alike[0], {"tfidf": alike[1]})["tfidf"]["difference"]
    apart = got["difference"]
    assert clustered["high"] - clustered["low"] > 2 * (apart["high"] - apart["low"])


def test_the_most_frequent_label_may_be_a_tie():
    """Half of the training pairs have the first response better: the majority knows nothing."""
    majority = pair_baselines(
        [*pair_rows(1, 0), *pair_rows(1, 0, swap=True)],
        [([*texts], ((0, 1),)) for texts, _ in pair_rows(7, 1)]
        + [([*texts], ((1, 0),)) for texts, _ in pair_rows(3, 2)],
    )["majority"]
    assert majority["accuracy"] == 0.5


@pytest.mark.parametrize("first_better", [3, 7])
def test_pairs_without_a_difference_are_half_right(first_better):
    """Ten dev pairs of equally long responses: their length says nothing."""

    def row(text, other, better):
        texts = [RMText(rm.prefix("question: why"), (rm.words(x),)) for x in (text, other)]
        return texts, ((0, 1) if better else (1, 0),)

    train = [row("one two", "one", True), row("one", "one two", False)] * 5
    dev = [row("cat dog", "dog cat", i < first_better) for i in range(10)]
    assert pair_baselines(train, dev)["length"] == {"accuracy": 0.5, "auc": 0.5}
