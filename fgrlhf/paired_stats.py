"""Differences between two policies or models, with 95% intervals over prompts.

The construction is that of fgrlhf/stats.py. `with_zero` widens the interval of a difference that
few prompts decide, by an exact test: `swap_p` and `sign_p`.

Axes here: Q prompts or clusters of them, C counts.
"""

import math
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import ArrayLike

from fgrlhf.stats import (
    FEWEST_UNITS,
    LEVEL,
    ROUNDING,
    Clusters,
    Interval,
    Spread,
    Statistic,
    checked_columns,
    checked_counts,
    clustered,
    counting_rows,
    interval_of,
    jackknifed,
    no_interval,
    over_last_axis,
    ratio_values,
    ratios,
    skewed_bounds,
    spread,
    that_count,
    too_few,
    without_each,
)

MOST_FLIPPED = 14  # differences whose signs are all tried: 2^14 sums
MOST_STEPS = 10_000  # of differences that are multiples of one number, in all
MOST_PARTS = 12  # of the smallest difference, of which the others may be multiples


def paired_interval(a: ArrayLike, b: ArrayLike, clusters: Clusters = None) -> Interval:
    """The mean of a - b, where a[i] and b[i] belong to the same prompt.

    The interval contains zero if `sign_p` is .05 or more.
    """
    table = checked_columns("paired values", [a, b])
    table = np.concatenate([table, np.ones((len(table), 1))], axis=1)
    sums = clustered(table, clusters)

    def means(summed: np.ndarray) -> np.ndarray:
        return summed[..., 0] / summed[..., 1]

    interval = _paired(sums[:, [0, 2]], sums[:, [1, 2]], means)
    return with_zero(interval, sign_p(sums[:, 0] - sums[:, 1]))


def paired_ratio_interval(
    a: tuple[ArrayLike, ArrayLike], b: tuple[ArrayLike, ArrayLike], clusters: Clusters = None
) -> Interval:
    """The ratio of a minus the ratio of b, as in `ratio_interval`.

    Prompts for which all four numbers are 0 are left out.

    Args:
      a, b: (numerators, denominators), a number of each per prompt.
      clusters: of each prompt.

    Raises:
      ValueError: the four columns are not equally long, or one is empty or not finite.
    """
    columns = checked_columns("paired numerators and denominators", [*a, *b])
    columns = that_count(clustered(columns, clusters))
    return _paired(columns[:, :2], columns[:, 2:], ratios)


def paired_pooled_interval(
    a: ArrayLike, b: ArrayLike, statistic: Statistic, clusters: Clusters = None
) -> Interval:
    """The statistic of a minus that of b, as in `pooled_interval`.

    Args:
      a, b: (Q, C), the C counts of each prompt; a[i] and b[i] belong to the same prompt.
      statistic: C summed counts -> number.
      clusters: of each prompt.
    Raises:
      ValueError: there are not as many prompts in both, none, or a count is not finite.
    """
    sides = [checked_counts(a), checked_counts(b)]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"paired counts must be of the same prompts: {len(sides[0])} and {len(sides[1])} given"
        )
    first, second = (clustered(counts_QC, clusters) for counts_QC in sides)
    return _paired(first, second, over_last_axis(statistic))


def _paired(
    a_QC: np.ndarray, b_QC: np.ndarray, statistics: Callable[[np.ndarray], np.ndarray]
) -> Interval:
    """The statistic of the sums of a minus that of b, with an interval over their shared units."""
    first, second = (np.nan_to_num(statistics(side.sum(0))) for side in (a_QC, b_QC))
    estimate = float(first - second)
    if len(a_QC) < FEWEST_UNITS:
        return too_few(estimate, len(a_QC))
    without = statistics(without_each(a_QC)) - statistics(without_each(b_QC))
    interval = interval_of(estimate, jackknifed(estimate, without))
    return with_zero(interval, swap_p(a_QC, b_QC, statistics))


def with_zero(interval: Interval, p: float) -> Interval:
    """The interval, up to zero if it excludes zero although the exact p is .05 or more."""
    if p < 1 - LEVEL or not interval.excludes_zero:
        return interval
    return Interval(interval.mean, min(interval.low, 0.0), max(interval.high, 0.0))


def swap_p(
    a_QC: np.ndarray, b_QC: np.ndarray, statistics: Callable[[np.ndarray], np.ndarray]
) -> float:
    """The exact two-sided p-value of no difference, from the k units in which a and b differ.

    If there is none, every unit is as likely with a and b swapped. p is the share of the 2^k ways
    to swap for which the difference of the statistics is at least as far from zero. It is 2^(1 - k)
    or more, and 1 without a differing unit: four of a hundred prompts that are better give .125.
    With more than MOST_FLIPPED such units it is 0, since then the interval alone decides.
    """
    differs = (a_QC != b_QC).any(1)
    differing = int(differs.sum())
    if differing > MOST_FLIPPED:
        return 0.0
    total_C = (a_QC + b_QC).sum(0)
    # sums of a for every way to swap: the equal units, then each side of each differing unit
    sums = a_QC[~differs].sum(0)[None]
    for first, second in zip(a_QC[differs], b_QC[differs]):
        sums = np.concatenate([sums + first, sums + second])
    differences = np.abs(np.nan_to_num(statistics(sums) - statistics(total_C - sums)))
    observed = differences[0]  # nothing is swapped in the first
    return float(np.mean(differences >= observed * (1 - ROUNDING)))


def sign_p(differences_Q: np.ndarray) -> float:
    """The exact two-sided p-value of a mean difference: every sign is as likely the other one.

    It is `swap_p` if few units differ. If the differences are multiples of one step, as those of
    exact matches or stars, the distribution of their sum follows from that of each:

        P(S + d = x) = (P(S = x - d) + P(S = x + d)) / 2

    so it is exact for any number of them: 12 better and 4 worse prompts give .077, the sign test.
    It is 0 for many differences of other sizes, since then the interval alone decides.
    """
    steps = _steps(differences_Q[differences_Q != 0])
    if steps is None:
        a_QC = differences_Q[:, None]
        return swap_p(a_QC, -a_QC, lambda sums: sums[..., 0])
    middle = int(np.abs(steps).sum())
    share_of_sum = np.zeros(2 * middle + 1)
    share_of_sum[middle] = 1.0
    for step in np.abs(steps):
        share_of_sum = (np.roll(share_of_sum, step) + np.roll(share_of_sum, -step)) / 2
    observed = abs(int(steps.sum()))
    if observed == 0:
        return 1.0
    return float(2 * share_of_sum[middle + observed :].sum())


def _steps(differences: np.ndarray) -> np.ndarray | None:
    """The differences as whole multiples of one number; None if there is no such number."""
    if differences.size == 0:
        return None
    smallest = np.abs(differences).min()
    for parts in range(1, MOST_PARTS + 1):
        multiples = differences / smallest * parts
        steps = np.round(multiples)
        if np.abs(steps).sum() > MOST_STEPS:
            return None
        if np.allclose(multiples, steps, rtol=0, atol=1e-6):
            return steps.astype(np.int64)
    return None


def unpaired_ratio_interval(
    a: tuple[ArrayLike, ArrayLike],
    b: tuple[ArrayLike, ArrayLike],
    clusters: tuple[Clusters, Clusters] = (None, None),
) -> Interval:
    """The ratio of a minus the ratio of b, which have different items.

    The squares of the standard errors are added, and the degrees of freedom are Welch's. With
    u_q / Q and v_q / R the deviations of the pseudo-values of clusters that both sides have, over
    the units of the side, twice their covariance is subtracted:

        s^2 = s_a^2 + s_b^2 - 2 sum u_q v_q / sqrt(Q (Q - 1) R (R - 1))

    Args:
      a, b: (numerators, denominators), a number of each per item of that side.
      clusters: of the items of each side. A side without clusters has units of its own.

    Raises:
      ValueError: the columns of a side are not equally long, or one is empty or not finite.
    """
    estimates = []
    spreads = []
    shares: list[dict[Hashable, float]] = []  # of each unit, in the estimate's deviation
    for number, (side, names) in enumerate(zip((a, b), clusters, strict=True)):
        columns = checked_columns("numerators and denominators", side)
        if names is None:
            names = [(number, place) for place in range(len(columns))]
        counts_QC = clustered(columns, names)
        counting_Q = counting_rows(counts_QC)
        units = [unit for unit, counts in zip(dict.fromkeys(names), counting_Q.tolist()) if counts]
        estimate, pseudo = ratio_values(counts_QC[counting_Q])
        estimates.append(estimate)
        if pseudo.size >= FEWEST_UNITS and np.isfinite(pseudo).all():
            spreads.append(spread(pseudo))
            deviations = (pseudo - pseudo.mean()) / math.sqrt(pseudo.size * (pseudo.size - 1))
            shares.append(dict(zip(units, deviations.tolist(), strict=True)))
    difference = estimates[0] - estimates[1]
    if len(spreads) < 2:
        return no_interval(difference, f"a side has less than {FEWEST_UNITS} units")
    covariance = sum(value * shares[1].get(unit, 0.0) for unit, value in shares[0].items())
    both = _of_difference(spreads[0], spreads[1], covariance)
    if both.error == 0:
        return no_interval(difference, "all units of a side agree")
    below, above = skewed_bounds(both, 1 - LEVEL)
    return Interval(difference, difference - below, difference + above)


def _of_difference(a: Spread, b: Spread, covariance: float) -> Spread:
    """The spread of a difference of estimates: second and third moments add up."""
    independent = a.error**2 + b.error**2
    square = max(independent - 2 * covariance, 0.0)
    if square <= (ROUNDING**2) * independent:
        return Spread(0.0, 0.0, min(a.degrees, b.degrees))
    skew = (a.skew * a.error**3 - b.skew * b.error**3) / square**1.5
    degrees = independent**2 / (a.error**4 / a.degrees + b.error**4 / b.degrees)
    return Spread(math.sqrt(square), skew, degrees)
