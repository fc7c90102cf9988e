"""The value of items for annotation: numbers by hand, and what tells the criteria apart."""

import math

import numpy as np
import pytest

from fgrlhf.data.selection import best, disagreement, drift, entropy, pair_uncertainty, uncertainty

# H(.9, .1) / log 2
H9 = -(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))


def test_entropy_by_hand():
    assert entropy(np.array([[0.5, 0.5], [1.0, 0.0], [0.9, 0.1]])) == pytest.approx([1, 0, H9])
    three = entropy(np.array([[1 / 3] * 3, [0.5, 0.5, 0.0]]))
    assert three == pytest.approx([1, math.log(2) / math.log(3)])


def test_uncertainty_is_the_mean_over_segments():
    assert uncertainty(np.array([[0.5, 0.5], [0.0, 1.0]])) == pytest.approx(0.5)
    assert uncertainty(np.zeros((0, 2))) == 0


def test_pair_uncertainty_by_hand():
    assert pair_uncertainty([1.0, 1.0]) == pytest.approx(1)
    assert pair_uncertainty([math.log(9), 0.0]) == pytest.approx(H9)
    assert pair_uncertainty([0.0, math.log(9)]) == pytest.approx(H9)
    # three pairs: two of log 9, one of equal scores
    assert pair_uncertainty([math.log(9), 0.0, math.log(9)]) == pytest.approx((2 * H9 + 1) / 3)
    assert pair_uncertainty([3.0]) == 0
    assert pair_uncertainty([1e4, -1e4]) == 0


def test_disagreement_by_hand():
    """Two models: equally uncertain on the first segment, of opposite opinions on the second."""
    p_MSC = np.array([[[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]])
    assert disagreement(p_MSC) == pytest.approx(0.5)
    assert disagreement(p_MSC[:, :1]) == pytest.approx(0)
    assert disagreement(p_MSC[:, 1:]) == pytest.approx(1)
    both = np.array([[[0.9, 0.1]], [[0.1, 0.9]]])
    assert disagreement(both) == pytest.approx(1 - H9)
    assert disagreement(np.zeros((2, 0, 2))) == 0


def test_drift_finds_the_new_texts():
    known = [f"the cat number {i} sat on a mat" for i in range(40)]
    alike = [f"the cat number {i} sat on a mat" for i in range(40, 60)]
    new = [f"a rocket number {i} flew to space" for i in range(60, 80)]
    values, auc = drift([*alike, *new], known, seed=0)
    assert values[20:].min() > values[:20].max()
    assert 0.6 < auc < 0.9  # half of the texts are not new
    _, none = drift(alike, known, seed=0)
    assert none < 0.7
    with pytest.raises(ValueError, match="both groups need 5 texts, there are 40 and 4"):
        drift([*alike, *new], known[:4], seed=0)


def test_the_score_of_drift_is_measured_on_unseen_texts():
    """A model that had seen these random texts could tell the two groups apart."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefgh"), 6)) for _ in range(200)]
    _, auc = drift(texts[:100], texts[100:], seed=0)
    assert auc < 0.65


def test_the_best_come_first():
    assert best([0.1, 0.9, 0.5], 2, seed=0) == [1, 2]
    assert best([0.1, 0.9], 5, seed=0) == [1, 0]
    orders = {tuple(best([1.0] * 4, 4, seed)) for seed in range(20)}
    assert len(orders) > 10 and best([1.0] * 4, 4, 3) == best([1.0] * 4, 4, 3)
