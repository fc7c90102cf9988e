import itertools
import math
import tracemalloc

import numpy as np
import pytest
from scipy.stats import norm, t

from fgrlhf import stats
from fgrlhf.stats import (
    Interval,
    bootstrap,
    holm,
    independent_ratio_bootstrap,
    paired_bootstrap,
    paired_pooled_bootstrap,
    paired_ratio_bootstrap,
    pooled_bootstrap,
    ratio_bootstrap,
    seed_interval,
    seed_p_value,
)


def all_means(values):
    """All q^q equally likely samples: the exact bootstrap distribution."""
    return np.array([np.mean(sample) for sample in itertools.product(values, repeat=len(values))])


def test_bootstrap_equals_the_exact_distribution_of_a_small_set():
    values = [0.0, 1.0, 3.0, 10.0]
    # 256 samples. Lowest: 1 of mean 0, 4 of .25, 6 of .5 (the 7th lowest is .5); highest: 1 of 10,
    # 4 of 8.25, 4 of 7.75
    assert sorted(all_means(values))[6] == 0.5 and sorted(all_means(values))[-7] == 7.75
    assert bootstrap(values, n=40_000) == Interval(3.5, 0.5, 7.75)


def test_one_value_everywhere_has_no_width():
    assert bootstrap([2.5] * 7) == Interval(2.5, 2.5, 2.5)
    assert ratio_bootstrap([1, 2, 3], [2, 4, 6]) == Interval(0.5, 0.5, 0.5)


def test_seed_decides_the_draws():
    values = np.random.default_rng(0).normal(size=50)
    assert bootstrap(values, seed=3) == bootstrap(values, seed=3)
    assert bootstrap(values, seed=3) != bootstrap(values, seed=4)


def test_another_statistic():
    got = bootstrap([1.0, 2.0, 100.0], statistic=np.median)
    assert got == Interval(2.0, 1.0, 100.0)


def test_pairing_takes_the_question_out():
    rng = np.random.default_rng(1)
    question = rng.normal(scale=10, size=200)
    a, b = (
        question + 0.5 + rng.normal(scale=0.1, size=200),
        question + rng.normal(scale=0.1, size=200),
    )
    paired = paired_bootstrap(a, b)
    assert paired.mean == pytest.approx(a.mean() - b.mean())
    assert paired.excludes_zero and paired.high - paired.low < 0.06
    # unpaired, the questions' spread would drown the difference
    assert bootstrap(a).high - bootstrap(a).low > 2
    reverse = paired_bootstrap(b, a)
    assert reverse.low == pytest.approx(-paired.high, abs=0.01) and reverse.excludes_zero


def test_a_single_prompt_has_no_interval():
    alone = [
        bootstrap([0.5]),
        bootstrap([0.5], np.median),
        paired_bootstrap([1.5], [1.0]),
        ratio_bootstrap([1], [2]),
        paired_ratio_bootstrap(([1], [1]), ([1], [2])),
        independent_ratio_bootstrap(([1.0], [1.0]), ([1.0, 1.0], [2.0, 2.0])),
        pooled_bootstrap([[1.0, 2.0]], lambda sums: sums[0] / sums[1]),
        seed_interval([np.array([0.25]), np.array([0.75])]),
    ]
    assert alone == [Interval(0.5, math.nan, math.nan)] * len(alone)
    assert alone[0].as_dict() == {"mean": 0.5, "low": None, "high": None}
    assert str(alone[0]) == "0.500 (no interval)" and not alone[0].excludes_zero
    assert ratio_bootstrap([0], [0]) == Interval(0.0, math.nan, math.nan)
    assert seed_p_value([np.array([0.25]), np.array([0.75])]) == 1


def test_ratio_is_of_sums_not_a_mean_of_ratios():
    assert ratio_bootstrap([1, 9], [1, 10]).mean == pytest.approx(10 / 11)
    assert ratio_bootstrap([0, 0], [0, 0]) == Interval(0.0, 0.0, 0.0)


def test_prompts_without_a_denominator_do_not_widen_the_interval_of_a_ratio():
    # one prompt is left, which has no interval
    assert ratio_bootstrap([0, 4], [0, 8]) == Interval(0.5, math.nan, math.nan)
    # three of a hundred prompts have segments: their ratio is known as if there were no others
    few = ([3.0, 3.0, 3.0] + [0.0] * 97, [3.0, 3.0, 4.0] + [0.0] * 97)
    assert ratio_bootstrap(*few) == ratio_bootstrap([3, 3, 3], [3, 3, 4])
    # paired with a policy whose ratio is 1/2 everywhere
    halves = ([1.0] * 100, [2.0] * 100)
    paired = paired_ratio_bootstrap(few, halves)
    assert paired.mean == pytest.approx(0.4)
    assert paired.low >= 0.25 and paired.high == pytest.approx(0.5)
    # prompts without segments on both sides do not count
    one, other = ([1.0, 0.0, 0.0], [2.0, 3.0, 0.0]), ([1.0, 3.0, 0.0], [2.0, 3.0, 0.0])
    first_two = [tuple(column[:2] for column in side) for side in (one, other)]
    assert paired_ratio_bootstrap(one, other) == paired_ratio_bootstrap(*first_two)
    # but a numerator without a denominator does: three seconds for no mark, one for one mark
    assert ratio_bootstrap([3, 1], [0, 1]).mean == 4
    nothing = ([0.0, 0.0], [0.0, 0.0])
    assert paired_ratio_bootstrap(nothing, nothing) == Interval(0.0, 0.0, 0.0)
    against_nothing = paired_ratio_bootstrap(([1.0, 1.0], [2.0, 2.0]), nothing)
    assert against_nothing == Interval(0.5, 0.5, 0.5)


def test_pooled_counts_are_those_of_whole_questions():
    counts = [[1, 10, 3], [9, 10, 0], [0, 40, 0]]

    def share(sums):
        return sums[0] / sums[1]

    above, below, _ = zip(*counts, strict=True)
    assert pooled_bootstrap(counts, share, seed=5) == ratio_bootstrap(above, below, seed=5)
    assert pooled_bootstrap(counts, share).mean == 10 / 60
    # not a ratio: each of the 27 equally likely draws has more than 2.5%
    draws = [np.sum(draw, axis=0).max() for draw in itertools.product(counts, repeat=3)]
    assert pooled_bootstrap(counts, max) == Interval(60, min(draws), max(draws))


def test_paired_pooled_counts_share_their_draws():
    counts = [[1.0, 10.0], [9.0, 10.0], [0.0, 40.0]]
    other = [[3.0, 5.0], [1.0, 8.0], [2.0, 2.0]]

    def share(sums):
        return sums[0] / sums[1]

    assert paired_pooled_bootstrap(counts, counts, share) == Interval(0.0, 0.0, 0.0)
    columns = [tuple(zip(*side, strict=True)) for side in (counts, other)]
    expected = paired_ratio_bootstrap(*columns, seed=3)
    assert paired_pooled_bootstrap(counts, other, share, seed=3) == expected
    with pytest.raises(ValueError, match="3 and 2 given"):
        paired_pooled_bootstrap(counts, other[:2], share)


def coverage(interval_of, truth, runs=1500):
    return np.mean(
        [truth >= got.low and truth <= got.high for got in map(interval_of, range(runs))]
    )


def test_intervals_hold_the_truth_95_times_in_100():
    # 1500 runs: standard error .006; intervals of level .90 or .98 would be outside these bounds
    def mean(run):
        return bootstrap(np.random.default_rng(run).normal(1.0, 2.0, size=120), n=500, seed=run)

    def difference(run):
        rng = np.random.default_rng(1000 + run)
        question = rng.normal(size=120)
        return paired_bootstrap(
            question + rng.normal(0.3, 1.0, 120), question + rng.normal(size=120), n=500, seed=run
        )

    def ratio(run):
        rng = np.random.default_rng(2000 + run)
        segments = rng.integers(1, 12, size=120)
        # segments of one answer share its quality: clusters
        question_rate = rng.beta(3, 2, size=120)
        return ratio_bootstrap(rng.binomial(segments, question_rate), segments, n=500, seed=run)

    for interval_of, truth in ((mean, 1.0), (difference, 0.3), (ratio, 0.6)):
        assert 0.93 < coverage(interval_of, truth) < 0.965


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap([]),
        lambda: bootstrap([1.0, float("nan")]),
        lambda: bootstrap([[1.0]]),
        lambda: paired_bootstrap([1.0], [1.0, 2.0]),
        lambda: ratio_bootstrap([1.0], [1.0, 2.0]),
        lambda: pooled_bootstrap([], sum),
        lambda: pooled_bootstrap([1.0, 2.0], sum),
        lambda: pooled_bootstrap([[1.0, float("nan")]], sum),
    ],
)
def test_statistics_without_an_interval_are_refused(call):
    with pytest.raises(ValueError):
        call()


# ---- many comparisons ----------------------------------------------------------------------------


def test_holm_by_hand():
    # sorted .01 .02 .03 .04: 4 * .01 = .04; 3 * .02 = .06; 2 * .03 = .06; 1 * .04 = .04, but at
    # least the value before
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([0.03]) == [0.03] and holm([]) == []
    assert holm([0.01, 0.01]) == [0.02, 0.02]
    for wrong in ([-0.1], [1.1], [float("nan")]):
        with pytest.raises(ValueError):
            holm(wrong)


def test_holm_is_closed_testing_with_bonferroni():
    """The corrected p of i is the largest Bonferroni p-value of all sets of hypotheses with i."""
    rng = np.random.default_rng(0)
    for m in (1, 2, 3, 5, 7):
        p = rng.beta(0.4, 2, size=m)
        sets = [s for k in range(1, m + 1) for s in itertools.combinations(range(m), k)]
        expected = [max(min(1, len(s) * min(p[list(s)])) for s in sets if i in s) for i in range(m)]
        assert holm(p) == pytest.approx(expected)


def test_p_values_by_hand():
    values = np.random.default_rng(0).normal(0.2, 1.0, size=100)
    interval = seed_interval([values])
    error = (interval.high - interval.low) / 2 / 1.959964
    assert seed_p_value([values]) == pytest.approx(2 * norm.sf(interval.mean / error), rel=1e-6)
    # no variation over questions: a t test of three means
    same = [np.full(100, mean) for mean in (0.1, 0.2, 0.3)]
    assert seed_p_value(same) == pytest.approx(2 * t.sf(0.2 / (0.1 / 3**0.5), 2), rel=1e-6)
    assert seed_p_value([np.zeros(5)] * 2) == 1.0
    assert seed_p_value([np.random.default_rng(1).normal(1e3, 1, size=2000)]) == 0.0


def test_few_prompts_are_never_significant():
    """Without a difference, n prompts all have the same sign with probability 2 / 2^n."""
    assert seed_p_value([np.array([0.3])]) == 1.0
    assert seed_p_value([np.array([0.3, 0.31])]) == 0.5
    assert seed_p_value([np.ones(5)] * 2) == 1 / 16
    assert seed_p_value([np.random.default_rng(1).normal(1e3, 1, size=50)]) == 2.0**-49


def test_a_p_value_below_a_twentieth_is_an_interval_without_zero():
    verdicts = set()
    for run in range(60):
        rng = np.random.default_rng(run)
        differences = [rng.normal(0.4 * rng.normal(), 1.0, size=40) + 0.25 for _ in range(3)]
        real = seed_p_value(differences) < 0.05
        verdicts.add(real)
        assert real == seed_interval(differences).excludes_zero
    assert verdicts == {True, False}


def test_draws_in_parts_give_the_same_intervals(monkeypatch):
    rng = np.random.default_rng(2)
    above, more = rng.integers(0, 9, (2, 301)).astype(float)
    below = above + more + 1

    def intervals():
        return [
            stats.bootstrap(values, seed=3),
            stats.bootstrap(values, np.median, seed=3),
            stats.ratio_bootstrap(above, below, seed=1),
            stats.paired_ratio_bootstrap((above, below), (more, below), seed=2),
            stats.independent_ratio_bootstrap((above, below), (more[:9], below[:9]), seed=4),
            stats.pooled_bootstrap(np.stack([above, below], 1), lambda sums: sums[0] / sums[1]),
        ]

    values = rng.normal(size=301)
    whole = intervals()
    monkeypatch.setattr(stats, "MOST_DRAWN", 1000)  # three draws at a time, and two at the end
    assert intervals() == whole


def test_memory_does_not_grow_with_draws_times_prompts():
    ones = np.ones(20_000)
    tracemalloc.start()
    stats.ratio_bootstrap(ones, ones, n=500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * 2**20  # the draws alone have 76 MB


def test_independent_ratios_are_resampled_separately():
    one = ([1.0, 3.0, 0.0], [2.0, 3.0, 4.0])
    constant = ([1.0, 2.0], [2.0, 4.0])
    # 1/2 in every sample of the other side: the interval of the first side, moved
    difference = independent_ratio_bootstrap(one, constant)
    alone = ratio_bootstrap(*one)
    expected = (alone.mean - 0.5, alone.low - 0.5, alone.high - 0.5)
    assert (difference.mean, difference.low, difference.high) == pytest.approx(expected)
    # equal sides are not drawn together, as paired ones are
    same = independent_ratio_bootstrap(one, one)
    assert same.mean == 0 and same.low < 0 < same.high
    assert same == independent_ratio_bootstrap(one, one)
    with pytest.raises(ValueError, match="3 and 1 given"):
        independent_ratio_bootstrap(constant, (one[0], [1.0]))
    with pytest.raises(ValueError, match="one or more prompts"):
        independent_ratio_bootstrap(constant, ([], []))


def test_paired_ratios_share_their_draws():
    above, below = [1.0, 3.0, 0.0], [2.0, 3.0, 4.0]
    # the same on both sides: every draw of prompts has a difference of zero
    assert paired_ratio_bootstrap((above, below), (above, below)) == Interval(0.0, 0.0, 0.0)
    # half of everything on the other side: half of the interval
    half = paired_ratio_bootstrap((above, below), ([0.5, 1.5, 0.0], below))
    whole = ratio_bootstrap(above, below)
    assert half.mean == pytest.approx(whole.mean / 2)
    assert (half.low, half.high) == pytest.approx((whole.low / 2, whole.high / 2))
    # with equal denominators it is the bootstrap of the differences
    same = paired_ratio_bootstrap((above, [1, 1, 1]), (below, [1, 1, 1]))
    assert same == paired_bootstrap(above, below)
    with pytest.raises(ValueError, match="of the same prompts"):
        paired_ratio_bootstrap((above, below), ([1.0], [1.0]))
