"""The area under the ROC curve and its interval over prompts."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from fgrlhf.auc import area_interval, assumed_error, auc, auc_difference, auc_interval
from fgrlhf.stats import Interval, interval_of, jackknifed


def cases(seed: int, prompts: int, alike: int = 1, share: float = 0.3, distance: float = 1.0):
    """Scores, kinds and prompts; positives have scores that are higher by `distance`."""
    rng = np.random.default_rng(seed)
    units = np.repeat(np.arange(prompts), alike)
    positive = rng.random(units.size) < share
    scores = np.round(rng.normal(size=units.size) + distance * positive, 1)  # with ties
    return scores, positive, units.tolist()


def test_areas_by_hand():
    # 0.4 < 0.7 is the only wrong pair of six
    assert auc(np.array([0.9, 0.8, 0.7, 0.4, 0.2]), np.array([1, 1, 0, 1, 0], bool)) == 5 / 6
    ties = auc(np.array([0.6, 0.6, 0.6, 0.1]), np.array([1, 0, 1, 0], bool))
    assert ties == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)
    scores, positive, _ = cases(0, 300)
    assert auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_one_kind_has_no_area():
    """It is no 1/2 as if measured."""
    for positive in (np.ones(4, bool), np.zeros(4, bool)):
        assert auc(np.arange(4.0), positive) is None
        for figure in (
            auc_interval(np.arange(4.0), positive),
            auc_difference(np.arange(4.0), np.arange(4.0), positive),
        ):
            assert figure == "it needs cases of both kinds, and all 4 are of one"


def test_leaving_out_a_prompt_removes_all_its_cases():
    scores, positive, units = cases(1, 25, alike=4)
    other, names = cases(2, 25, alike=4)[0], np.array(units)

    def area(x, unit):
        kept = names != unit
        return roc_auc_score(positive[kept], x[kept])

    difference = roc_auc_score(positive, scores) - roc_auc_score(positive, other)
    without = np.array([area(scores, unit) - area(other, unit) for unit in range(25)])
    rarer = len(set(names[positive]))  # prompts with a positive
    assert rarer < 25
    expected = interval_of(difference, jackknifed(difference, without), rarer=rarer)
    got = auc_difference(scores, other, positive, units)
    assert isinstance(got, Interval)
    assert (got.mean, got.low, got.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )


def test_few_prompts_of_a_kind_have_no_interval():
    positive = np.arange(200) < 9
    got = auc_interval(np.arange(200.0), positive)
    assert str(got) == "0.000 (no interval: 9 of at least 10 units of the rarer kind)"
    # twenty segments of one prompt are one unit
    units = [0] * 20 + list(range(1, 181))
    got = auc_interval(np.arange(200.0), np.arange(200) < 20, units)
    assert isinstance(got, Interval) and not got.has_bounds
    with pytest.raises(ValueError, match="of the same cases"):
        auc_interval(np.arange(200.0), positive, units[:3])


def test_a_perfect_order_has_an_interval_with_width():
    got = auc_interval(np.arange(40.0), np.arange(40) >= 25)
    assert isinstance(got, Interval) and got.mean == got.high == 1 and 0.8 < got.low < 0.95
    mirrored = auc_interval(-np.arange(40.0), np.arange(40) >= 25)
    assert isinstance(mirrored, Interval) and mirrored.low == mirrored.mean == 0
    assert mirrored.high == pytest.approx(1 - got.low)


def test_the_bounds_by_hand():
    """A = .9 with 10 positives and 20 negatives: s^2 = .09 (1 + 14 (.1/1.1 + .9/1.9)) / 200."""
    error = (0.09 * (1 + 14 * (0.1 / 1.1 + 0.9 / 1.9)) / 200) ** 0.5
    assert assumed_error(0.9, 10, 20) == pytest.approx(error) == pytest.approx(0.0633, abs=1e-4)
    got = area_interval(0.9, 1.2, 1.5, 10, 20)
    for bound, factor in ((got.low, 1.2 * 1.5), (got.high, 1.2)):
        assert abs(0.9 - bound) == pytest.approx(
            1.96 * factor * assumed_error(bound, 10, 20), abs=1e-4
        )
    assert 0 < got.low < 0.9 < got.high < 1
    mirrored = area_interval(0.1, 1.2, 1.5, 10, 20)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - got.high, 1 - got.low))


def test_few_positives_below_many_negatives_have_a_long_tail():
    """Of 100 negatives, 50 are above the last of 20 positives: d = 1, D = 50; A = .975."""
    scores = np.concatenate([np.arange(100.0), [49.5], np.arange(100.0, 119.0)])
    positive = np.arange(120) >= 100
    got = auc_interval(scores, positive)
    assert isinstance(got, Interval) and got.mean == pytest.approx(0.975)
    assert assumed_error(0.975, 20, 100) < 0.025  # the standard error by the jackknife
    without = [roc_auc_score(np.delete(positive, i), np.delete(scores, i)) for i in range(120)]
    error = np.std(without, ddof=1) * 119 / 120**0.5
    unseen = (1 + 2 * (1 - 1 / 50) / 2) ** 0.5
    expected = area_interval(0.975, error / assumed_error(0.975, 20, 100), unseen, 20, 100)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("share, area", [(0.2, 0.92), (0.5, 0.99), (0.2, 0.99)])
def test_skewed_scores_near_1_are_covered(share, area):
    """Few positives are in the wrong order, so the jackknife alone would cover .83 to .90."""
    covered = 0
    for run in range(400):
        rng = np.random.default_rng(run)
        positive = rng.random(300) < share
        got = auc_interval(
            rng.exponential(size=300) * np.where(positive, area / (1 - area), 1), positive
        )
        assert isinstance(got, Interval)
        covered += got.low <= area <= got.high
    assert 0.915 < covered / 400 < 0.98


@pytest.mark.parametrize("share, distance", [(0.5, 1.0), (0.2, 0.0), (0.2, 2.0), (0.3, 2.8)])
def test_the_interval_holds_the_truth(share, distance):
    covered = 0
    for run in range(300):
        rng = np.random.default_rng(run)
        positive = rng.random(100) < share
        scores = rng.normal(size=100) + distance * positive
        got = auc_interval(scores, positive)
        assert isinstance(got, Interval)
        covered += not got.has_bounds or got.low <= norm.cdf(distance / 2**0.5) <= got.high
    assert 0.92 < covered / 300 < 0.98


def test_segments_of_a_prompt_are_no_further_prompts():
    scores, positive, units = cases(3, 60)
    copies = [np.tile(x, 5) for x in (scores, positive)]
    one, five = auc_interval(scores, positive), auc_interval(*copies, units * 5)
    apart = auc_interval(*copies)
    for got in (one, five, apart):
        assert isinstance(got, Interval)
    assert (five.low, five.high) == pytest.approx((one.low, one.high), abs=0.01)
    assert apart.high - apart.low < 0.6 * (one.high - one.low)
