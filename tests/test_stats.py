import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, binomtest, t

from benchmarks.coverage import can_be_covered, exact_rows, mean_share_coverage, share_coverage
from fgrlhf.paired_stats import (
    paired_interval,
    paired_pooled_interval,
    paired_ratio_interval,
    sign_p,
    unpaired_ratio_interval,
)
from fgrlhf.seed_stats import holm, seed_interval, seed_p_value
from fgrlhf.stats import (
    Interval,
    f1_interval,
    interval_of,
    jackknifed,
    mean_interval,
    median_interval,
    pooled_interval,
    ratio_interval,
    share_interval,
    share_of_prompts,
    spread,
)

NONE = (math.nan, math.nan)


def share(sums):
    return sums[0] / sums[1]


# ---- means ---------------------------------------------------------------------------------------


def test_values_without_skewness_have_the_interval_of_student():
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 10.0, 11.0, 12.0, 13.0]
    half = t.ppf(0.975, 9) * np.std(values, ddof=1) / 10**0.5
    got = mean_interval(values)
    assert (got.mean, got.low, got.high) == pytest.approx((7, 7 - half, 7 + half))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_skewed_mean_by_hand(sign):
    """Eleven 0 and a 12: mean 1, m_2 = 11, m_3 = 110, s = 1, c = 110 / 11^1.5 11^.5 / 10 = 1."""
    c = 1.0 * (1 + 1.5 / 11**0.5)  # the skewness seen and unseen
    got = mean_interval([0.0] * 11 + [12.0 * sign])
    near, far = sorted((abs(got.low - sign), abs(got.high - sign)))
    assert near == pytest.approx(t.ppf(0.975, 11))  # Student's t, without skewness
    assert (got.high > 0) if sign > 0 else (got.low < 0)
    T = -far  # (estimate - bound) / s on the side of the tail
    transformed = T + c * T**2 / 3 + c**2 * T**3 / 27 + c / 6
    assert transformed == pytest.approx(t.ppf(0.025, 11))
    assert far > 2 * near


def test_equal_values_have_no_interval():
    for got in (
        mean_interval([2.5] * 10),
        paired_interval([0.1] * 10, [0.1] * 10),
        paired_pooled_interval([[1.0, 2.0]] * 10, [[1.0, 2.0]] * 10, share),
        paired_ratio_interval(([1.0] * 10, [2.0] * 10), ([1.0] * 10, [2.0] * 10)),
        unpaired_ratio_interval(([1] * 10, [2] * 10), ([1] * 10, [2] * 10)),
    ):
        assert not got.has_bounds and "agree" in str(got)
    assert str(mean_interval([2.5] * 10)) == "2.500 (no interval: all 10 units agree)"


def test_rounding_is_no_spread():
    assert "agree" in str(mean_interval([0.1 + 0.2, *[0.3] * 9]))
    thirds = [[1.0, 3.0], [2.0, 6.0], [3.0, 9.0], [7.0, 21.0], [0.1, 0.3]] * 2
    assert "agree" in str(pooled_interval(thirds, share))


def test_pairing_takes_the_question_out():
    rng = np.random.default_rng(1)
    question = rng.normal(scale=10, size=200)
    a = question + 0.5 + rng.normal(scale=0.1, size=200)
    b = question + rng.normal(scale=0.1, size=200)
    paired = paired_interval(a, b)
    assert paired.mean == pytest.approx(a.mean() - b.mean())
    assert paired.excludes_zero and paired.high - paired.low < 0.06
    # unpaired, the questions' spread would drown the difference
    assert mean_interval(a).high - mean_interval(a).low > 2
    reverse = paired_interval(b, a)
    assert (reverse.low, reverse.high) == pytest.approx((-paired.high, -paired.low))


def test_too_few_prompts_have_no_interval():
    alone = [
        mean_interval([0.5]),
        mean_interval([0.0, 1.0]),
        mean_interval([0.1, 0.9] * 4 + [0.5]),
        share_of_prompts([0.5]),
        paired_interval([1.5], [1.0]),
        ratio_interval([1], [2]),
        paired_ratio_interval(([1], [1]), ([1], [2])),
        paired_interval([1.0] * 9, [0.0, 1.0, 0.5] * 3),
        unpaired_ratio_interval(([1.0], [1.0]), ([1.0] * 10, [2.0] * 10)),
        pooled_interval([[1.0, 2.0]], share),
        paired_pooled_interval([[3.0, 2.0]], [[2.0, 2.0]], share),
        seed_interval([np.array([0.25]), np.array([0.75])]),
        mean_interval([0.0, 1.0, 0.0, 1.0], clusters=["a", "a", "b", "b"]),
        mean_interval([0.0, 1.0, 0.0, 1.0], clusters=["a", "a", "a", "a"]),
    ]
    assert alone == [Interval(0.5, *NONE)] * len(alone)
    assert alone[0].as_dict() == {"mean": 0.5, "low": None, "high": None}
    assert str(alone[0]) == "0.500 (no interval: 1 of at least 10 units)"
    assert str(alone[1]) == "0.500 (no interval: 2 of at least 5 units)"  # a share
    assert not alone[0].excludes_zero
    assert seed_p_value([np.array([0.25]), np.array([0.75])]) == 1


# ---- shares --------------------------------------------------------------------------------------


def test_a_share_by_hand():
    """Agresti and Coull: z^2 / 2 = 1.92 successes and as many failures more."""
    got = share_interval(8, 10)
    q = (8 + 1.9207) / (10 + 3.8415)
    half = 1.96 * (q * (1 - q) / 13.8415) ** 0.5
    assert (got.mean, got.low, got.high) == pytest.approx((0.8, q - half, q + half), abs=1e-4)
    for successes, trials in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="have no share"):
            share_interval(successes, trials)


@pytest.mark.parametrize("trials", [10, 20, 50, 100, 200, 400])
def test_shares_are_covered_by_exact_probabilities(trials):
    """Wilson's interval covers .01 of 50 with probability .911."""
    for p in (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.95, 0.99):
        assert 0.929 < share_coverage(p, trials) < 0.997


def test_what_no_interval_can_cover_by_hand():
    """.01 of 50: up to one .911, up to two .986; .5 of 10: 3 to 7 .891, 2 to 8 .979."""
    assert not can_be_covered(0.01, 50) and share_coverage(0.01, 50) == pytest.approx(
        0.986, abs=5e-4
    )
    assert not can_be_covered(0.5, 10) and share_coverage(0.5, 10) == pytest.approx(0.979, abs=5e-4)
    assert can_be_covered(0.2, 10)  # up to four: .967
    mean = np.mean([share_coverage(p, 10) for p in (np.arange(500) + 0.5) / 500])
    assert mean_share_coverage(10) == pytest.approx(mean, abs=1e-3)


def test_the_documented_coverage_is_from_93_to_97_or_has_a_mark():
    text = (Path(__file__).parents[1] / "docs/metrics.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and "none" in line]
    cells = re.findall(r"\| (\.\d{3})(?= )", "\n".join(rows))
    assert len(cells) > 100
    assert all(0.918 < float(cell) < 0.98 for cell in cells)  # simulated
    for name, cells in exact_rows().items():
        assert f"| {name} | {' | '.join(cells)} |" in text


def test_shares_at_a_limit_have_width():
    none = mean_interval([0.0] * 100)  # nobody was toxic
    assert none.mean == none.low == 0
    assert none.high == pytest.approx(1 - 0.025**0.01)  # exact: with it, none has 2.5%
    everyone = ratio_interval([5, 3, 4, 5, 2], [5, 3, 4, 5, 2])
    assert everyone.mean == everyone.high == 1 and 0.5 < everyone.low < 0.52
    # the responses to a prompt may all be alike: a hundred prompts are a hundred trials
    assert share_of_prompts([0.0] * 100) == none == ratio_interval([0] * 100, [4] * 100)


def test_independent_responses_are_further_trials_and_equal_ones_are_not():
    rng = np.random.default_rng(0)
    responses = rng.integers(0, 2, (200, 4))
    one = mean_interval(responses[:, 0])
    four = share_of_prompts(responses.mean(1))
    copies = share_of_prompts(np.repeat(responses[:, :1], 4, axis=1).mean(1))
    width = four.high - four.low
    assert width == pytest.approx((one.high - one.low) / 2, rel=0.1)
    assert copies == one
    with pytest.raises(ValueError, match="from 0 to 1"):
        share_of_prompts([0.5, 1.5])


def test_where_one_side_is_never_missed_the_other_has_all_of_five_percent():
    """40 trials, estimated, of 80 responses: a single success leaves up to .0738 possible."""
    two, one = share_interval(6, 40, 9), share_interval(6, 40, 9, cases=80)
    assert two.low < 0.0738 and one.high == two.high
    more = 40 + t.ppf(0.95, 9) ** 2
    middle = (6 + t.ppf(0.95, 9) ** 2 / 2) / more
    at_5 = middle - t.ppf(0.95, 9) * (middle * (1 - middle) / more) ** 0.5
    assert one.low == pytest.approx(min(at_5, 0.0738), abs=1e-4) and one.low > two.low
    mirrored = share_interval(34, 40, 9, cases=80)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - one.high, 1 - one.low))
    assert share_interval(20, 40, 9, cases=80) == share_interval(20, 40, 9)


def test_f1_by_hand():
    """Four prompts with a hit, one with a miss, one with a false alarm: J = 4/6, F1 = 8/10."""
    matched, marks = [2, 2, 2, 2, 0, 0, 0], [2, 2, 2, 2, 1, 1, 0]
    got, jaccard = f1_interval(matched, marks), share_interval(4, 6)
    expected = [2 * j / (1 + j) for j in (4 / 6, jaccard.low, jaccard.high)]
    assert (got.mean, got.low, got.high) == pytest.approx(expected)
    assert got.mean == pytest.approx(0.8)
    # all segments of a prompt alike are no further trials
    names = list("abcdefg") * 3
    copies = f1_interval(matched * 3, marks * 3, names)
    assert (copies.low, copies.high) == pytest.approx((got.low, got.high))
    few = f1_interval([2, 0, 0], [2, 1, 0])
    assert str(few) == "0.667 (no interval: 2 of at least 5 units)"


@pytest.mark.parametrize("errors, prompts", [(0.05, 20), (0.05, 50), (0.2, 20), (0.5, 10)])
def test_f1_is_covered_by_exact_probabilities(errors, prompts):
    """Four fifths of the errors are found and as many of the others are let pass.

    The number of marked prompts is binomial, and given it that of hits. Student's t, as for an
    estimated number of trials, would cover up to .995.
    """
    marked = errors + 0.2 * (1 - errors)
    share = 0.8 * errors / marked
    covered = has_bounds = 0.0
    for trials in range(5, prompts + 1):
        chance = binom.pmf(trials, prompts, marked)
        has_bounds += chance
        for hits in range(trials + 1):
            got = f1_interval(
                [2] * hits + [0] * (trials - hits), [2] * hits + [1] * (trials - hits)
            )
            if got.low <= 2 * share / (1 + share) <= got.high:
                covered += chance * binom.pmf(hits, trials, share)
    assert 0.95 < covered / has_bounds < 0.97


# ---- ratios and pooled counts --------------------------------------------------------------------


def test_pseudo_values_of_a_mean_are_the_values():
    values = np.array([1.0, 5.0, 9.0, 2.0, 7.0, 0.0, 3.0, 3.0, 4.0, 30.0])
    without = np.array([np.delete(values, i).mean() for i in range(10)])
    assert jackknifed(values.mean(), without) == pytest.approx(values)
    got = pooled_interval(np.stack([values, np.ones(10)], axis=1), share)
    expected = mean_interval(values)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high))
    assert not interval_of(1.0, np.array([1.0, math.nan, 2.0])).has_bounds


def test_ratio_is_of_sums_not_a_mean_of_ratios():
    assert ratio_interval([1, 9], [1, 10]).mean == pytest.approx(10 / 11)
    assert ratio_interval([0, 0], [0, 0]).mean == 0
    assert ratio_interval([3, 1], [0, 1]).mean == 4  # three seconds for no mark, one for one mark


def test_prompts_without_a_denominator_do_not_count():
    few = ([3.0, 3.0, 3.0] + [0.0] * 97, [3.0, 3.0, 4.0] + [0.0] * 97)
    assert ratio_interval(*few) == ratio_interval([3, 3, 3], [3, 3, 4])
    assert ratio_interval([0, 4], [0, 8]) == Interval(0.5, *NONE)
    one = ([1.0, 0.0, 2.0, 1.0, 0.0], [2.0, 3.0, 2.0, 3.0, 0.0])
    other = ([1.0, 3.0, 1.0, 1.0, 0.0], [2.0, 3.0, 2.0, 2.0, 0.0])
    first = [tuple(column[:4] for column in side) for side in (one, other)]
    assert paired_ratio_interval(one, other) == paired_ratio_interval(*first)


def test_differences_of_ratios_and_of_pooled_counts_agree():
    a = ([1, 9, 3, 4, 8, 1, 2, 5, 7, 6], [10, 10, 40, 9, 11, 5, 6, 8, 9, 7])
    b = ([3, 9, 8, 7, 9, 3, 4, 5, 2, 1], [10, 12, 20, 9, 12, 5, 6, 9, 9, 8])
    counts = [list(zip(*side, strict=True)) for side in (a, b)]
    got = paired_pooled_interval(*counts, share)
    expected = paired_ratio_interval(a, b)
    assert (got.mean, got.low, got.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )
    # with equal denominators it is the interval of the mean difference
    ones = [1.0] * 10
    same = paired_ratio_interval((a[0], ones), (b[0], ones))
    means = paired_interval(a[0], b[0])
    assert (same.low, same.high) == pytest.approx((means.low, means.high))
    with pytest.raises(ValueError, match="10 and 2 given"):
        paired_pooled_interval(counts[0], counts[1][:2], share)


def test_independent_ratios_have_the_interval_of_welch():
    a, b = np.arange(1.0, 12.0), np.arange(2.0, 22.0, 2.0)
    got = unpaired_ratio_interval((a, [1] * 11), (b, [1] * 10))
    va, vb = np.var(a, ddof=1) / 11, np.var(b, ddof=1) / 10
    degrees = (va + vb) ** 2 / (va**2 / 10 + vb**2 / 9)
    half = t.ppf(0.975, degrees) * (va + vb) ** 0.5
    assert (got.mean, got.low, got.high) == pytest.approx((-5, -5 - half, -5 + half))
    with pytest.raises(ValueError, match="1 and 3 given"):
        unpaired_ratio_interval((a, [1] * 11), ([1.0], [1.0, 2.0, 3.0]))


def test_clusters_that_both_ratios_have_are_no_independent_units():
    """One item of each prompt on each side: it is the interval of the paired difference."""
    a, b = np.arange(10.0) ** 1.5, np.arange(10.0) ** 1.5 + np.tile([0.0, 1.0], 5)
    ones = [1.0] * 10
    names = [f"prompt {i}" for i in range(10)]
    apart = unpaired_ratio_interval((a, ones), (b, ones))
    shared = unpaired_ratio_interval((a, ones), (b, ones), (names, names))
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    moved = unpaired_ratio_interval(
        (a, ones), (b[order], ones), (names, [names[place] for place in order])
    )
    assert (moved.low, moved.high) == pytest.approx((shared.low, shared.high))
    error = np.std(a - b, ddof=1) / 10**0.5
    assert shared.mean == pytest.approx(apart.mean) == pytest.approx(-0.5)
    assert 2 * error < shared.high - shared.mean < 2.3 * error < apart.high - apart.mean
    # two items of each cluster say no more than their sums
    twice = unpaired_ratio_interval(
        (np.repeat(a, 2), np.ones(20)), (b, ones), (np.repeat(names, 2).tolist(), None)
    )
    assert (twice.low, twice.high) == pytest.approx((apart.low, apart.high))
    same = unpaired_ratio_interval((a, ones), (a, ones), (names, names))
    assert not same.has_bounds and same.reason == "all units of a side agree"


def test_large_denominators_leave_few_degrees_of_freedom():
    """Satterthwaite (1946): eleven denominators 1 and one of 9 decide by (92)^2 / 6572 units."""
    weights = np.array([1.0] * 11 + [9.0])
    pseudo = np.arange(12.0)
    equal, unequal = spread(pseudo, np.full(12, 7.0)), spread(pseudo, weights)
    assert equal == spread(pseudo) and equal.degrees == 11
    assert unequal.degrees == pytest.approx(11 * 92**2 / (12 * 6572))
    assert (unequal.error, unequal.skew) == (equal.error, equal.skew)
    # seconds per mark: these are too few to say how far the ratio may be from the truth
    seconds = np.array([3.0, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 80])
    few = ratio_interval(seconds, weights)
    assert few.reason == "2 of at least 10 units, counted by their weight"
    assert ratio_interval(seconds, np.full(12, 20 / 12)).has_bounds
    weights, seconds = np.array([1.0] * 10 + [2.0] * 10), np.tile(seconds[:10], 2)
    wide = ratio_interval(seconds, weights)
    estimate, without = 78 / 30, (78 - seconds) / (30 - weights)
    of = spread(20 * estimate - 19 * without, weights)
    assert of.degrees == pytest.approx(19 * 50**2 / (20 * 170))
    assert wide.low <= estimate - t.ppf(0.975, of.degrees) * of.error + 1e-9


def test_zeros_and_ones_are_as_many_trials_as_prompts():
    """Their number is known, so nothing has Student's t; five trials would be covered .99 to 1."""
    assert mean_interval([0, 1] * 5) == share_interval(5, 10)
    assert ratio_interval([0, 1, 1, 0, 1], [1] * 5, list("abcde")) == share_interval(3, 5)
    twins = mean_interval([0, 0, 1, 1] * 5, [i // 2 for i in range(20)])
    assert (twins.low, twins.high) == pytest.approx((share_interval(5, 10).low, 1 - twins.low))
    # one half occurs, so that the number of trials is estimated: .75 .25 / s^2, s^2 = .0625 / 9,
    # and is 20 at most
    halves = mean_interval([0, 1, 1, 1] * 5, [i // 2 for i in range(20)])
    expected = share_interval(0.75 * 27, 27, degrees=9, cases=20)
    assert (halves.low, halves.high) == pytest.approx((expected.low, expected.high))


def test_the_median_is_between_order_statistics():
    # at most .025 below: of six values P(none below) = 1/64; of nine P(0 or 1) = 10/512
    assert median_interval([3, 1, 2, 5, 4, 6]) == Interval(3.5, 1, 6)
    assert median_interval(range(9)) == Interval(4, 1, 7)
    assert not median_interval([1, 2, 3, 4, 5]).has_bounds


# ---- clusters ------------------------------------------------------------------------------------


def test_copies_of_a_prompt_in_one_cluster_say_nothing_new():
    rng = np.random.default_rng(3)
    values, other = rng.normal(size=(2, 30))
    names = [str(i) for i in range(30)] * 4

    def bounds(got):
        return got.mean, got.low, got.high

    copies = mean_interval(np.tile(values, 4), clusters=names)
    assert bounds(copies) == pytest.approx(bounds(mean_interval(values)))
    copies = paired_interval(np.tile(values, 4), np.tile(other, 4), clusters=names)
    assert bounds(copies) == pytest.approx(bounds(paired_interval(values, other)))
    # a cluster of its own for each prompt changes nothing
    apart = mean_interval(values, clusters=names[:30])
    assert bounds(apart) == pytest.approx(bounds(mean_interval(values)))
    with pytest.raises(ValueError, match="clusters are named"):
        mean_interval(values, clusters=["a"])


def test_clusters_hold_the_truth():
    """Twenty prompts of a cluster share half of their variance: as if they were two."""
    covered = {True: 0, False: 0}
    names = np.repeat(np.arange(25), 20).tolist()
    for run in range(300):
        rng = np.random.default_rng(run)
        values = np.repeat(rng.normal(size=25), 20) + rng.normal(size=500)
        for is_clustered in covered:
            got = mean_interval(values, names if is_clustered else None)
            covered[is_clustered] += got.low <= 0 <= got.high
    assert covered[True] > 0.92 * 300 and covered[False] < 0.6 * 300


# ---- coverage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [10, 20, 120])
def test_intervals_hold_the_truth_95_times_in_100(prompts):
    """1000 runs have a standard error of .007; percentile bootstraps cover .76 with 3 prompts."""
    covered = {"ratio": 0, "mean": 0, "difference": 0, "exponential": 0, "lognormal": 0}
    for run in range(1000):
        rng = np.random.default_rng(run)
        question = rng.normal(size=prompts)
        segments = rng.integers(1, 12, size=prompts)
        # segments of one answer share its quality
        right = rng.binomial(segments, rng.beta(3, 2, size=prompts))
        a = question + rng.normal(0.3, 1.0, prompts)
        got = {
            "ratio": (ratio_interval(right, segments), 0.6),
            "mean": (mean_interval(rng.normal(1.0, 2.0, size=prompts)), 1.0),
            "difference": (paired_interval(a, question + rng.normal(size=prompts)), 0.3),
            "exponential": (mean_interval(rng.exponential(size=prompts)), 1.0),
            # as mean perplexities: of few values, none may come from the long tail
            "lognormal": (mean_interval(rng.lognormal(0, 1.2, prompts)), math.exp(1.2**2 / 2)),
        }
        for name, (interval, truth) in got.items():
            covered[name] += interval.low <= truth <= interval.high
    shares = {name: count / 1000 for name, count in covered.items()}
    assert min(shares.values()) > 0.928 and max(shares.values()) < 0.976


@pytest.mark.parametrize(
    "call",
    [
        lambda: mean_interval([]),
        lambda: mean_interval([1.0, float("nan")]),
        lambda: mean_interval([[1.0]]),
        lambda: paired_interval([1.0], [1.0, 2.0]),
        lambda: ratio_interval([1.0], [1.0, 2.0]),
        lambda: pooled_interval([], sum),
        lambda: pooled_interval([1.0, 2.0], sum),
        lambda: pooled_interval([[1.0, float("nan")]], sum),
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


# ---- p-values ------------------------------------------------------------------------------------


def test_a_p_value_is_that_of_student_without_skewness():
    values = np.linspace(-1, 1, 101) + 0.1
    error = values.std(ddof=1) / 101**0.5
    assert seed_p_value([values]) == pytest.approx(2 * t.sf(0.1 / error, 100), rel=1e-6)
    # no variation over questions: a t test of three means
    same = [np.full(100, mean) for mean in (0.1, 0.2, 0.3)]
    assert seed_p_value(same) == pytest.approx(2 * t.sf(0.2 / (0.1 / 3**0.5), 2), rel=1e-6)
    assert seed_p_value([np.zeros(10)] * 2) == 1.0
    # both: squares of distances are added
    both = [values - 0.05, values + 0.05]
    prompts = t.ppf(0.975, 100) * error
    seeds = t.ppf(0.975, 1) * 0.05
    assert seed_interval(both).high == pytest.approx(0.1 + math.hypot(prompts, seeds))


def test_few_prompts_are_never_significant():
    """Without a difference, n prompts all have the same sign with probability 2 / 2^n."""
    assert seed_p_value([np.array([0.3])]) == seed_p_value([np.ones(9)] * 2) == 1.0
    assert seed_p_value([np.ones(10)] * 2) == 1 / 512
    assert seed_p_value([np.random.default_rng(1).normal(1e3, 1, size=50)]) == 2.0**-49


def flipped(values):
    """The share of all changes of signs whose mean is at least as far from zero."""
    observed = abs(np.mean(values))
    signs = itertools.product((1, -1), repeat=len(values))
    return np.mean([abs(np.mean(np.multiply(values, sign))) >= observed - 1e-12 for sign in signs])


@pytest.mark.parametrize("differing", range(1, 15))
def test_prompts_without_a_difference_carry_no_information(differing):
    """4 of 100 better, 96 equal: the exact sign test gives 1/8, and 5 give 1/16."""
    values = np.zeros(100)
    values[:differing] = 1
    got = seed_p_value([values])
    assert got == pytest.approx(2.0 ** (1 - differing), rel=1e-9) or got > 2.0 ** (1 - differing)
    interval = paired_interval(values, np.zeros(100))
    of_one_seed = seed_interval([values])
    assert (interval.low, interval.high) == pytest.approx((of_one_seed.low, of_one_seed.high))
    assert interval.excludes_zero == (differing >= 6) == (got < 0.05)


def test_p_values_of_sparse_differences_fall_as_they_become_more():
    p_values = []
    for differing in range(1, 30):
        values = np.zeros(100)
        values[:differing] = 1
        p_values.append(seed_p_value([values]))
    assert p_values[3] == 0.125 and p_values[4] == 0.0625
    assert p_values == sorted(p_values, reverse=True)


@pytest.mark.parametrize("better, worse", [(12, 4), (13, 4), (14, 5), (15, 6), (17, 7), (60, 40)])
def test_equal_differences_have_the_p_of_the_sign_test(better, worse):
    values = np.zeros(200)
    values[:better], values[better : better + worse] = 1, -1
    exact = binomtest(better, better + worse).pvalue
    assert sign_p(values / 3) == pytest.approx(exact)
    assert seed_p_value([values]) >= exact - 1e-12
    significant = paired_interval(values, np.zeros(200)).excludes_zero
    assert significant == seed_interval([values]).excludes_zero
    assert not (significant and exact >= 0.05)


def test_differences_of_several_steps_have_the_p_of_every_change_of_signs():
    values = np.array([1.5, 1.0, -0.5, 1.0, 1.0, 0.0, 1.5, -1.0])  # halves, not multiples of one
    assert sign_p(values) == pytest.approx(flipped(values))
    assert sign_p(np.array([1.0, -1.0])) == 1 and sign_p(np.zeros(3)) == 1
    many = np.tile(values, 4)
    assert 0 < sign_p(many) < sign_p(values)
    assert sign_p(np.sqrt(np.arange(1.0, 30))) == 0  # the interval decides


def test_sparse_p_values_are_those_of_every_change_of_signs():
    for run in range(20):
        rng = np.random.default_rng(run)
        nonzero = rng.normal(0.5, 1.0, size=rng.integers(3, 9))
        exact = flipped(nonzero)
        values = np.concatenate([nonzero, np.zeros(50)])
        assert seed_p_value([values]) >= exact - 1e-12
        got = paired_ratio_interval((values, np.ones_like(values)), (0 * values, values * 0 + 1))
        assert not got.excludes_zero or exact < 0.05


def test_false_positives_are_rare():
    """Binary differences of few prompts, without a real difference."""
    settings = {(100, 0.02): 0, (100, 0.1): 0, (10, 0.5): 0, (30, 0.3): 0}
    for (prompts, rate), _ in settings.items():
        for run in range(400):
            rng = np.random.default_rng(run)
            values = rng.choice([0.0, 1.0, -1.0], prompts, p=[1 - rate, rate / 2, rate / 2])
            settings[prompts, rate] += seed_p_value([values]) < 0.05
    assert max(settings.values()) <= 0.07 * 400


@pytest.mark.parametrize("prompts, seeds", [(9, 1), (9, 3), (10, 1), (12, 2), (40, 1), (40, 3)])
def test_a_p_value_below_a_twentieth_is_an_interval_without_zero(prompts, seeds):
    verdicts = set()
    for run in range(60):
        rng = np.random.default_rng(run)
        shape = (seeds, prompts)
        differences = list(rng.exponential(size=shape) * rng.integers(0, 2, shape) - 0.4 + run / 60)
        real = seed_p_value(differences) < 0.05
        verdicts.add(real)
        assert real == seed_interval(differences).excludes_zero
    assert verdicts == ({False} if prompts < 10 else {True, False})
