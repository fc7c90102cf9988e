"""Linear baselines of reward models: features by hand, and what they can and cannot predict."""

import math
import random

import pytest
import rm_helpers as rm

from fgrlhf.reward_models.prefix import RMText
from fgrlhf.reward_models.text_features import TEXT_FEATURES, segment_features
from reward_modeling.baselines import (
    comparison,
    pair_baselines,
    segment_baselines,
)


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
    assert results == {"majority": {"accuracy": 1, "auc": 0.5, "error_f1": 0}}


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


def test_a_model_that_does_not_beat_them_says_so():
    baselines = {
        "majority": {"accuracy": 0.5, "auc": 0.5},
        "features": {"accuracy": 0.7, "auc": 0.75},
    }
    text = comparison(0.7, baselines)
    assert (
        "does NOT beat a linear model of ten hand-made features (model.text_features=true" in text
    )
    assert len(text.splitlines()) == 2, "the verdict has its own line"
    perfect = comparison(1.0, {"features": {"accuracy": 1.0, "auc": 1.0}})
    assert "are right on every one of these rows" in perfect and "NOT" not in perfect
    assert "0.050 above the best of them" in comparison(0.75, baselines)
    assert "does NOT" not in comparison(0.75, baselines)


@pytest.mark.parametrize("first_better", [3, 7])
def test_pairs_without_a_difference_are_half_right(first_better):
    """Ten dev pairs of equally long responses: their length says nothing."""

    def row(text, other, better):
        texts = [RMText(rm.prefix("question: why"), (rm.words(x),)) for x in (text, other)]
        return texts, ((0, 1) if better else (1, 0),)

    train = [row("one two", "one", True), row("one", "one two", False)] * 5
    dev = [row("cat dog", "dog cat", i < first_better) for i in range(10)]
    assert pair_baselines(train, dev)["length"] == {"accuracy": 0.5, "auc": 0.5}
