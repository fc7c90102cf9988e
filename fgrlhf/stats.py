"""95% intervals over prompts.

Prompts are the units, never single responses or segments: responses to the same prompt are similar,
and treating them as independent would make every interval too narrow. Prompts that share a document
or a dialog are similar too: with `clusters` all prompts of one cluster are one unit.

Every interval has the same construction, without random numbers. A statistic t of sums over Q units
has the pseudo-values u_q = Q t - (Q - 1) t_q, where t_q leaves out unit q; those of a mean are the
values. Their mean square gives the standard error, their skewness the asymmetry:

    s^2 = m_2 / (Q - 1),  c = m_3 / m_2^1.5 sqrt(Q - 1) / (Q - 2),  m_k = mean (u_q - mean u)^k

`skewed_bounds` applies Student's t and Hall's correction for skewness, `share_interval` is for
shares, `f1_interval` for F1; differences are in fgrlhf/paired_stats.py. What these intervals cover
in simulations is in docs/metrics.md. See Efron & Tibshirani (1993), chapter 11.

Axes here: Q prompts or clusters of them, C counts.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit  # scipy.stats would take several times as long to import

LEVEL = 0.95
AGREE = "units agree"  # the end of the reason
FEWEST_UNITS = 10  # with less prompts or clusters there is no interval
FEWEST_TRIALS = 5  # likewise, if each of them is 0 or 1
UNSEEN_SKEW = 1.5  # docs/metrics.md has what the correction covers
ROUNDING = 1e-9  # a standard error below this share of the values is rounding

Statistic = Callable[[Sequence[float]], float]  # of summed counts
Clusters = Sequence[Hashable] | None  # of each prompt, the name of its cluster; None: its own


@dataclass(frozen=True)
class Interval:
    """A point estimate and its 95% interval.

    Both bounds are NaN if there is no interval, and `reason` says why. A single prompt has none,
    nor has a number that is the same for all prompts: nothing says how far others would be away.
    """

    mean: float
    low: float
    high: float
    reason: str = field(default="", compare=False)

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def has_bounds(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def units_agree(self) -> bool:
        """Whether there is no interval since the figure is the same for all units."""
        return not self.has_bounds and self.reason.endswith(AGREE)

    def as_dict(self) -> dict[str, float | None]:
        """The three numbers; null for bounds that do not exist."""
        if not self.has_bounds:
            return {"mean": self.mean, "low": None, "high": None}
        return {"mean": self.mean, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        if not self.has_bounds:
            reason = f": {self.reason}" if self.reason else ""
            return f"{self.mean:z.3f} (no interval{reason})"
        # `z` writes a rounded -0.0004 as 0.000
        return f"{self.mean:z.3f} [{self.low:z.3f}, {self.high:z.3f}]"


Figure = Interval | str  # a result, or the reason why it is undefined


# ---- one construction ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """How far an estimate may be from the truth, by the module's equations.

    Attributes:
      error: the standard error s; 0 if all units agree.
      skew: c, the skewness of the pseudo-values over sqrt(Q), without its bias in few units.
      degrees: degrees of freedom of Student's t, Q - 1 for units of equal weight.
    """

    error: float
    skew: float
    degrees: float


def spread(pseudo_Q: np.ndarray, weights_Q: np.ndarray | None = None) -> Spread:
    """The spread of an estimate with these pseudo-values.

    Few of the units of a ratio decide its standard error if they have large weights, so that it is
    known less well. Satterthwaite's degrees of freedom of a sum of squares with the weights w^2:

        (Q - 1) (sum w^2)^2 / (Q sum w^4)

    Satterthwaite (1946), Biometrics Bulletin 2, 110-114.

    Args:
      weights_Q: the denominators of the units of a ratio; None: they are equal.
    """
    units = pseudo_Q.size
    degrees = units - 1.0
    if weights_Q is not None and weights_Q.any():
        squares_Q = (weights_Q / np.abs(weights_Q).max()) ** 2
        degrees *= squares_Q.sum() ** 2 / (units * (squares_Q**2).sum())
    centred = pseudo_Q - pseudo_Q.mean()
    second = float((centred**2).mean())
    size = float(np.abs(pseudo_Q).max())
    if second <= (ROUNDING * size) ** 2:
        return Spread(0.0, 0.0, degrees)
    skew = float((centred**3).mean()) / second**1.5 * math.sqrt(units - 1) / (units - 2)
    return Spread(math.sqrt(second / (units - 1)), skew, degrees)


def interval_of(
    estimate: float,
    pseudo_Q: np.ndarray,
    limits: tuple[float, float] | None = None,
    fewest: int | None = None,
    rarer: int | None = None,
    weights_Q: np.ndarray | None = None,
    cases: float = math.inf,
) -> Interval:
    """The interval of an estimate with these pseudo-values, or the reason why there is none.

    Args:
      estimate: of all units.
      pseudo_Q: of each unit; not finite if the estimate does not exist without a unit.
      limits: the least and the greatest number that the estimate can be, if it has both.
      fewest: units that an interval needs; None: FEWEST_UNITS, or FEWEST_TRIALS if all are at a
        limit.
      rarer: of two kinds of units that the estimate compares, the number of the rarer kind, which
        decides how much is known; None: all units are of one kind.
      weights_Q: the denominators of a ratio without limits; None: the units have equal weights.
        Few large ones decide it, so that it needs `fewest` units by its degrees of freedom too.
      cases: of which a figure with limits is the share, of all units, as in `share_interval`.
    """
    low, high = (0.0, 1.0) if limits is None else limits
    shares_Q = (pseudo_Q - low) / (high - low)
    are_trials = limits is not None and bool(np.isin(shares_Q.round(9), (0, 1)).all())
    if fewest is None:
        fewest = FEWEST_TRIALS if are_trials else FEWEST_UNITS
    units = pseudo_Q.size if rarer is None else rarer
    if units < fewest:
        return too_few(estimate, units, fewest, "" if rarer is None else " of the rarer kind")
    if not np.isfinite(pseudo_Q).all():
        return no_interval(estimate, "one unit decides whether the figure exists")
    of_estimate = spread(pseudo_Q, weights_Q)
    if weights_Q is not None and of_estimate.degrees + 1 < fewest:
        return too_few(estimate, int(of_estimate.degrees) + 1, fewest, ", counted by their weight")
    if rarer is not None:
        of_estimate = replace(of_estimate, degrees=rarer - 1)
    if limits is not None:
        share = min(max((estimate - low) / (high - low), 0.0), 1.0)
        if are_trials:
            bounds = share_interval(share * units, units)
        else:
            trials = _trials(share, shares_Q)
            bounds = share_interval(share * trials, trials, of_estimate.degrees, cases)
        scale = high - low
        return Interval(estimate, low + scale * bounds.low, low + scale * bounds.high)
    if of_estimate.error == 0:
        return no_interval(estimate, f"all {units} {AGREE}")
    below, above = skewed_bounds(of_estimate, 1 - LEVEL)
    return Interval(estimate, estimate - below, estimate + above)


def no_interval(estimate: float, reason: str) -> Interval:
    """The estimate without bounds, and why it has none."""
    return Interval(float(estimate), math.nan, math.nan, reason)


def too_few(estimate: float, units: int, fewest: int = FEWEST_UNITS, kind: str = "") -> Interval:
    """The estimate without an interval, since there are too few units."""
    return no_interval(estimate, f"{units} of at least {fewest} units{kind}")


def skewed_bounds(of: Spread, p: float) -> tuple[float, float]:
    """How far below and above the estimate the (1 - p) interval reaches.

    T = (estimate - truth) / s is skewed; g(T) = T + c T^2 / 3 + c^2 T^3 / 27 + c / 6 hardly is, and
    its quantiles are taken to be those of Student's t:

        [estimate - s g^-1(t), estimate - s g^-1(-t)]
        g^-1(y) = 3 ((1 + c (y - c / 6))^(1/3) - 1) / c

    Hall (1992), On the Removal of Skewness by Transformation, J. R. Stat. Soc. B 54, 221-228, with
    the normal distribution there; Student's t is right for few values. Few values of a long tail
    show too little of it, and a single far value too much. So c is 1 + UNSEEN_SKEW / sqrt(degrees)
    times that of the spread, and each bound is the farther one of this and of Student's interval
    without skewness.
    """
    t = upper_t(p / 2, of.degrees)
    skew = (1 + UNSEEN_SKEW / math.sqrt(of.degrees)) * of.skew

    def untransformed(y: float) -> float:
        if abs(skew) < 1e-6:  # the limit; the quotient would be rounding
            return y
        return 3 * (float(np.cbrt(1 + skew * (y - skew / 6))) - 1) / skew

    return of.error * max(untransformed(t), t), of.error * max(-untransformed(-t), t)


def upper_t(p: float, degrees: float) -> float:
    """The number that Student's t with so many degrees of freedom exceeds with probability p."""
    return -float(stdtrit(degrees, p))


def share_interval(
    successes: float, trials: float, degrees: float = math.inf, cases: float = math.inf
) -> Interval:
    """The share of successes with its 95% interval, which is never a point.

    It is that of Agresti & Coull, cut to [0, 1]:

        m = trials + t^2,  q = (successes + t^2 / 2) / m,  q ± t sqrt(q (1 - q) / m)

    t is the upper 2.5% quantile of Student's t. The interval contains Wilson's, which covers shares
    near 0 or 1 too seldom (.91 for .01 of 50). Agresti & Coull (1998), Am. Stat. 52, 119-126.

    Without a success, the upper bound is at most the exact one, (1 - bound)^trials = 2.5%. A share
    below the upper bound of a single success in all cases is never missed on that side: there, the
    lower bound has t of 5%. Likewise with success and failure changed round.

    Args:
      successes, trials: need not be whole, for an effective number of trials.
      degrees: of freedom of the estimate of that number; infinite if the number is known.
      cases: the greatest number of trials that there can be, such as all responses to all prompts,
        if `trials` is an estimate; infinite: unknown, both bounds have 2.5%.

    Raises:
      ValueError: there are no trials, or more successes than trials.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} successes in {trials} trials have no share")
    tail = (1 - LEVEL) / 2
    low, high = _agresti_coull(successes, trials, upper_t(tail, degrees))
    inner_low, inner_high = _agresti_coull(successes, trials, upper_t(2 * tail, degrees))
    single = 0.0
    if math.isfinite(cases):
        single = _agresti_coull(1.0, cases, upper_t(tail, math.inf))[1]
    none = 1 - tail ** (1 / trials)
    low = max(low, min(inner_low, single), 1 - none if successes == trials else 0.0)
    high = min(high, max(inner_high, 1 - single), none if successes == 0 else 1.0)
    return Interval(successes / trials, low, high)


def _agresti_coull(successes: float, trials: float, t: float) -> tuple[float, float]:
    more = trials + t**2
    middle = (successes + t**2 / 2) / more
    half = t * math.sqrt(middle * (1 - middle) / more)
    return middle - half, middle + half


def _trials(share: float, shares_Q: np.ndarray) -> float:
    """The number of independent trials in which a share varies as much.

    It is share (1 - share) / s^2 with the standard error s of the units' shares; the number of
    units if they do not vary, or if the share is a limit, near which an error says nothing.
    """
    error = spread(shares_Q).error
    if error == 0 or share in (0, 1):
        return float(shares_Q.size)
    return share * (1 - share) / error**2


# ---- checked values ------------------------------------------------------------------------------


def _values(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"{name} must be one number for each of one or more prompts, got shape {array.shape}"
        )
    if not np.isfinite(array).all():
        place = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name} of prompt {place} is not a finite number")
    return array


def checked_columns(names: str, columns: Sequence[ArrayLike]) -> np.ndarray:
    """counts_QC of equally long columns."""
    checked = [_values(names, column) for column in columns]
    sizes = sorted({column.size for column in checked})
    if len(sizes) > 1:
        raise ValueError(f"{names} must be of the same prompts: {sizes[0]} and {sizes[1]} given")
    return np.stack(checked, axis=1)


def checked_counts(counts_by_prompt: ArrayLike) -> np.ndarray:
    """counts_QC, checked."""
    counts_QC = np.asarray(counts_by_prompt, dtype=np.float64)
    if counts_QC.ndim != 2 or counts_QC.size == 0:
        raise ValueError(
            f"counts_by_prompt must be a table of one or more prompts, got shape {counts_QC.shape}"
        )
    if not np.isfinite(counts_QC).all():
        raise ValueError("counts_by_prompt has a number that is not finite")
    return counts_QC


def clustered(counts_QC: np.ndarray, clusters: Clusters) -> np.ndarray:
    """The counts summed over the prompts of each cluster, in the order of first occurrence.

    The prompts are the first axis; there may be none or several behind it.
    """
    if clusters is None:
        return counts_QC
    if len(clusters) != len(counts_QC):
        raise ValueError(f"{len(clusters)} clusters are named for {len(counts_QC)} prompts")
    places: dict[Hashable, int] = {}
    rows = [places.setdefault(name, len(places)) for name in clusters]
    sums = np.zeros((len(places), *counts_QC.shape[1:]))
    np.add.at(sums, rows, counts_QC)
    return sums


def that_count(counts_QC: np.ndarray) -> np.ndarray:
    """The rows without those of zeros only, which say nothing; all rows if none is left."""
    return counts_QC[counting_rows(counts_QC)]


def counting_rows(counts_QC: np.ndarray) -> np.ndarray:
    """Which rows `that_count` keeps."""
    says_something = np.asarray(counts_QC.any(1))
    return says_something if says_something.any() else ~says_something


def ratios(sums: np.ndarray) -> np.ndarray:
    """sums[..., 0] / sums[..., 1]; 0 for 0/0 and NaN for another number over 0."""
    above, below = sums[..., 0], sums[..., 1]
    empty = np.where(above == 0, 0.0, np.nan)
    return np.divide(above, below, out=empty, where=below != 0)


def over_last_axis(statistic: Statistic) -> Callable[[np.ndarray], np.ndarray]:
    """The statistic of summed counts [..., C], over the last axis."""

    def values(sums: np.ndarray) -> np.ndarray:
        flat = [statistic(row) for row in sums.reshape(-1, sums.shape[-1]).tolist()]
        return np.array(flat, dtype=np.float64).reshape(sums.shape[:-1])

    return values


def jackknifed(estimate: float, without_Q: np.ndarray) -> np.ndarray:
    """The pseudo-values: Q t - (Q - 1) t_q, where t_q leaves out unit q."""
    units = without_Q.size
    return units * estimate - (units - 1) * without_Q


def without_each(counts_QC: np.ndarray) -> np.ndarray:
    """The sums [Q, C] that leave out each unit."""
    return counts_QC.sum(0) - counts_QC


# ---- figures of one policy -----------------------------------------------------------------------


def mean_interval(
    values_by_prompt: ArrayLike, clusters: Clusters = None, may_be_share: bool = True
) -> Interval:
    """The mean of one value per prompt. If all values are 0 or 1 it is a share.

    Args:
      may_be_share: False for values without limits, such as KL, that may all be 0 by chance.

    Raises:
      ValueError: there are no prompts, or a value is not finite.
    """
    values = _values("values_by_prompt", values_by_prompt)
    is_share = may_be_share and bool(np.isin(values, (0, 1)).all())
    return _mean(values, clusters, is_share)


def share_of_prompts(shares_by_prompt: ArrayLike, clusters: Clusters = None) -> Interval:
    """The mean of one share per prompt, such as that of its responses with a property.

    Raises:
      ValueError: there are no prompts, or a share is not a number from 0 to 1.
    """
    shares = _values("shares_by_prompt", shares_by_prompt)
    if shares.min() < 0 or shares.max() > 1:
        raise ValueError("shares_by_prompt must be numbers from 0 to 1")
    return _mean(shares, clusters, True)


def _mean(values: np.ndarray, clusters: Clusters, is_share: bool) -> Interval:
    _, pseudo = mean_pseudo_values(values, clusters)
    if not is_share:
        return interval_of(float(values.mean()), pseudo)
    # the share of one response is the smallest distance from 0 or 1
    steps = np.concatenate([values[values > 0], 1 - values[values < 1]])
    cases = values.size / float(steps.min())
    return interval_of(float(values.mean()), pseudo, (0.0, 1.0), cases=cases)


def mean_pseudo_values(means: np.ndarray, clusters: Clusters) -> tuple[np.ndarray, np.ndarray]:
    """The sum of each cluster, and the pseudo-values of the mean over prompts."""
    if clusters is None:
        return means, means
    counts_QC = clustered(np.stack([means, np.ones_like(means)], axis=1), clusters)
    if len(counts_QC) == 1:
        return counts_QC[:, 0], counts_QC[:, 0]
    return counts_QC[:, 0], jackknifed(float(means.mean()), ratios(without_each(counts_QC)))


def median_interval(values: ArrayLike) -> Interval:
    """The median with the interval between two order statistics, which needs no distribution.

    The number of values below the true median is binomial (n, 1/2). The interval goes from the kth
    smallest value to the kth largest, with the greatest k for which fewer than k are below with
    probability 2.5% at most. With five values or fewer there is none.

    Raises:
      ValueError: there are no values, or one is not finite.
    """
    ordered = np.sort(_values("values", values))
    n = ordered.size
    median = float(np.median(ordered))
    k = 0
    below = 0.0
    while below + math.comb(n, k) / 2**n <= (1 - LEVEL) / 2:
        below += math.comb(n, k) / 2**n
        k += 1
    if k == 0:
        return no_interval(median, f"{n} of at least 6 values")
    return Interval(median, float(ordered[k - 1]), float(ordered[n - k]))


def ratio_interval(
    numerators: ArrayLike, denominators: ArrayLike, clusters: Clusters = None
) -> Interval:
    """The ratio sum(numerators) / sum(denominators), with one of each per prompt.

    An example is the number of error-free segments over all segments. If no numerator is negative
    or exceeds its denominator, the ratio is a share. Prompts for which both are 0 say nothing about
    the ratio and are left out. If all prompts have the denominator 0, the ratio is 0.
    """
    counts_QC = checked_columns("numerators and denominators", [numerators, denominators])
    counts_QC = that_count(clustered(counts_QC, clusters))
    estimate, pseudo = ratio_values(counts_QC)
    above, below = counts_QC.T
    is_share = bool((above >= 0).all() and (above <= below).all() and below.any())
    if is_share:
        return interval_of(estimate, pseudo, (0.0, 1.0), cases=float(below.sum()))
    return interval_of(estimate, pseudo, weights_Q=below)


def f1_interval(matched: ArrayLike, marks: ArrayLike, clusters: Clusters = None) -> Interval:
    """F1 = sum(matched) / sum(marks), with one of each per prompt.

    A case that both sides mark has two matched marks, one that a single side marks has none of one,
    so F1 is no share of trials. The Jaccard index is: of the marked cases, the share that both
    mark. It decides F1, and its bounds become those of F1:

        J = sum(matched) / sum(2 marks - matched),  F1 = 2 J / (1 + J)

    Args:
      matched: of each prompt, the marks of both sides that have a partner.
      marks: all marks of both sides, such as the errors found plus the errors there.
      clusters: of each prompt.
    """
    matched_Q, marks_Q = checked_columns("matched and marks", [matched, marks]).T
    jaccard = ratio_interval(matched_Q, 2 * marks_Q - matched_Q, clusters)
    estimate, low, high = (2 * j / (1 + j) for j in (jaccard.mean, jaccard.low, jaccard.high))
    if not jaccard.has_bounds:
        return no_interval(estimate, jaccard.reason)
    return Interval(estimate, low, high)


def ratio_values(counts_QC: np.ndarray) -> tuple[float, np.ndarray]:
    """A ratio of sums and its pseudo-values."""
    estimate = float(np.nan_to_num(ratios(counts_QC.sum(0))))
    return estimate, jackknifed(estimate, ratios(without_each(counts_QC)))


def pooled_interval(
    counts_by_prompt: ArrayLike,
    statistic: Statistic,
    clusters: Clusters = None,
    limits: tuple[float, float] | None = None,
) -> Interval:
    """statistic(sum over prompts of counts), e.g. corpus-level BLEU.

    A mean of the statistic over prompts would be another quantity: here, prompts with long
    responses have more weight.

    Args:
      counts_by_prompt: (Q, C), the C counts of each prompt.
      statistic: C summed counts -> number.
      clusters: of each prompt.
      limits: of the statistic, if it has both.

    Raises:
      ValueError: there are no prompts, or a count is not finite.
    """
    counts_QC = clustered(checked_counts(counts_by_prompt), clusters)
    estimate = float(statistic(counts_QC.sum(0).tolist()))
    if len(counts_QC) < FEWEST_UNITS:
        return too_few(estimate, len(counts_QC))
    pseudo = jackknifed(estimate, over_last_axis(statistic)(without_each(counts_QC)))
    return interval_of(estimate, pseudo, limits)
