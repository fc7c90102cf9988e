"""Differences over several seeds on the same prompts: intervals, and p-values with correction.

The intervals over prompts are those of fgrlhf/stats.py. Axes as there: Q prompts or clusters.
"""

import math
from collections.abc import Sequence

import numpy as np

from fgrlhf.paired_stats import sign_p, with_zero
from fgrlhf.stats import (
    FEWEST_UNITS,
    LEVEL,
    Clusters,
    Interval,
    Spread,
    interval_of,
    mean_pseudo_values,
    no_interval,
    skewed_bounds,
    spread,
    too_few,
    upper_t,
)

SMALLEST_P = 1e-100  # a smaller p-value is not computed, and counts as its lower limit


def seed_interval(differences: Sequence[np.ndarray], clusters: Clusters = None) -> Interval:
    """The mean difference over several seeds on the same prompts, with a 95% interval.

    The distances to the bounds of an interval over prompts (`paired_interval` of the means over
    seeds) and of an interval over seeds (Student's t on the seeds' means) are added in quadrature.
    With one seed only the first is used. With less than FEWEST_UNITS prompts there is no interval.

    Args:
      differences: one array per seed, of one difference per prompt.
      clusters: of each prompt.
    """
    stacked = np.stack(differences)
    sums, pseudo = mean_pseudo_values(stacked.mean(0), clusters)
    mean = float(stacked.mean())
    if pseudo.size < FEWEST_UNITS:
        return too_few(mean, pseudo.size)
    over_prompts, over_seeds = spread(pseudo), _seed_error(stacked)
    if over_prompts.error == 0 and over_seeds == 0:
        return interval_of(mean, pseudo)
    below, above = _seed_bounds(over_prompts, over_seeds, len(stacked), 1 - LEVEL)
    return with_zero(Interval(mean, mean - below, mean + above), sign_p(sums))


def mean_over_seeds(scores: Sequence[float]) -> Interval:
    """The mean of one score per seed, with the 95% interval of Student's t.

        mean +- t(.975, S - 1) s / sqrt(S)

    A single seed has no interval, nor have seeds with the same score. Prompts are not its units, so
    it says nothing about others.
    """
    stacked = np.asarray(scores, dtype=np.float64)[:, None]
    mean, error = float(stacked.mean()), _seed_error(stacked)
    if error == 0:
        reason = "one seed" if len(stacked) == 1 else f"all {len(stacked)} seeds agree"
        return no_interval(mean, reason)
    reach = upper_t((1 - LEVEL) / 2, len(stacked) - 1) * error
    return Interval(mean, mean - reach, mean + reach)


def _seed_error(stacked: np.ndarray) -> float:
    """The standard error of the mean over seeds; 0 for one seed."""
    seeds = len(stacked)
    return float(stacked.mean(1).std(ddof=1) / np.sqrt(seeds)) if seeds > 1 else 0.0


def _seed_bounds(of: Spread, seed_error: float, seeds: int, p: float) -> tuple[float, float]:
    """How far below and above the mean the (1 - p) interval over prompts and seeds reaches."""
    over_seeds = upper_t(p / 2, seeds - 1) * seed_error if seed_error else 0.0
    below, above = skewed_bounds(of, p)
    return float(np.hypot(max(below, 0), over_seeds)), float(np.hypot(max(above, 0), over_seeds))


def seed_p_value(differences: Sequence[np.ndarray], clusters: Clusters = None) -> float:
    """The two-sided p-value of no difference, by the construction of `seed_interval`.

    p is the smallest number for which the (1 - p) interval still reaches zero: the root of

        sqrt(b(p)^2 + (t(p) s_s)^2) = |mean|

    b(p) is the distance to the bound over prompts that is nearer to zero, t(p) the upper p/2
    quantile of Student's t with seeds - 1 degrees of freedom, and s_s the standard error over
    seeds. With one seed s_s = 0.

    The interval alone would call too much significant if few prompts differ, which may have similar
    differences by chance. p is therefore at least the exact `sign_p` of the k units that differ,
    and at least 2^(1 - k). p < 0.05 exactly if the interval of `seed_interval` excludes zero.
    """
    from scipy.optimize import root_scalar  # slow to import, and only comparisons of seeds need it

    stacked = np.stack(differences)
    sums, pseudo = mean_pseudo_values(stacked.mean(0), clusters)
    differing = int(np.count_nonzero(sums))
    least = max(sign_p(sums), 2.0 ** (1 - differing))
    if pseudo.size < FEWEST_UNITS or differing == 0:
        return 1.0
    mean = float(stacked.mean())
    over_prompts, over_seeds = spread(pseudo), _seed_error(stacked)
    if over_prompts.error == 0 and over_seeds == 0:
        return least

    def distance(p: float) -> float:
        below, above = _seed_bounds(over_prompts, over_seeds, len(stacked), p)
        return below if mean > 0 else above

    # the distance decreases as p increases, to 0 at p = 1; solve for log10 p
    smallest = math.log10(max(least, SMALLEST_P))
    if mean == 0 or distance(1.0) >= abs(mean):
        return 1.0
    if distance(10**smallest) <= abs(mean):
        return least
    root = root_scalar(
        lambda log_p: distance(10**log_p) - abs(mean),
        bracket=(smallest, 0.0),
        method="brentq",
        xtol=1e-12,
    )
    return max(float(10**root.root), least)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for multiple comparisons, in the order given (Holm 1979).

    With p_(1) <= ... <= p_(m) sorted, the corrected p_(i) is the largest of (m - j + 1) p_(j) over
    j <= i, at most 1. If all differences with a corrected p below 0.05 are called significant, the
    probability of one or more false positives is at most 0.05, however the comparisons depend on
    each other.

    Raises:
      ValueError: a number is not a probability.
    """
    values = np.asarray(p_values, dtype=np.float64)
    if values.ndim != 1 or not ((values >= 0) & (values <= 1)).all():
        raise ValueError("p-values must be numbers from 0 to 1")
    corrected = np.empty_like(values)
    largest = 0.0
    for rank, place in enumerate(np.argsort(values, kind="stable")):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = largest
    return corrected.tolist()
