"""Percentile bootstrap intervals over prompts, and p-values corrected for multiple comparisons.

Prompts are resampled, never single responses or segments: responses to the same prompt are similar,
and treating them as independent would make every interval too narrow. See Efron & Tibshirani
(1993), chapter 13.

Axes here: Q prompts, C counts of a prompt, N draws.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit  # scipy.stats would take several times as long to import

LEVEL = 0.95
DRAWS = 2000  # samples of the prompts
MOST_DRAWN = 2**20  # indices at a time, so that memory does not grow with draws times prompts


@dataclass(frozen=True)
class Interval:
    """A point estimate and its 95% interval.

    Both bounds are NaN if there is no interval. A single prompt has none: all draws of it are
    equal, whatever the results of other prompts would be.
    """

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def has_bounds(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def as_dict(self) -> dict[str, float | None]:
        """The three numbers; null for bounds that do not exist."""
        return asdict(self) if self.has_bounds else {"mean": self.mean, "low": None, "high": None}

    def __str__(self) -> str:
        if not self.has_bounds:
            return f"{self.mean:z.3f} (no interval)"
        # `z` writes a rounded -0.0004 as 0.000
        return f"{self.mean:z.3f} [{self.low:z.3f}, {self.high:z.3f}]"


Figure = Interval | str  # a result, or the reason why it is undefined


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


def _draws(prompts: int, n: int, seed: int | np.random.Generator) -> np.ndarray:
    """Indices (n, prompts): each row is a sample of the prompts with replacement.

    A generator as the seed continues its random numbers, for a draw independent of an earlier one.
    """
    return np.random.default_rng(seed).integers(prompts, size=(n, prompts))


def _replicates(
    statistic: Callable[[np.ndarray], np.ndarray],
    prompts: int,
    n: int,
    seed: int | np.random.Generator,
) -> np.ndarray:
    """A statistic of each of the n draws of `_draws`, which are drawn and reduced a few at a time.

    NaN for a single prompt, of which all draws are equal.

    Args:
      statistic: of draws (m, prompts), a number for each of the m draws.
    """
    if prompts == 1:
        return np.full(n, math.nan)
    generator = np.random.default_rng(seed)
    at_a_time = max(1, MOST_DRAWN // prompts)
    parts = []
    for start in range(0, n, at_a_time):
        parts.append(statistic(_draws(prompts, min(at_a_time, n - start), generator)))
    return np.concatenate(parts)


def _interval(estimate: float, replicates: np.ndarray) -> Interval:
    """The percentile interval of the replicates that are not NaN; no bounds if all are.

    A ratio without a denominator is NaN, and so is every statistic of a draw of a single prompt.
    """
    replicates = replicates[~np.isnan(replicates)]
    if replicates.size == 0:
        return Interval(float(estimate), math.nan, math.nan)
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(replicates, [tail, 100 - tail])
    return Interval(float(estimate), float(low), float(high))


def bootstrap(
    values_by_prompt: ArrayLike, statistic: Callable = np.mean, n: int = DRAWS, seed: int = 0
) -> Interval:
    """Interval of `statistic` (called with `axis=-1`) over one value per prompt.

    theta*_i = statistic(values of sample i), i = 1..n; the interval goes from the 2.5th to the
    97.5th percentile of theta*.

    Raises:
      ValueError: there are no prompts, or a value is not finite.
    """
    values = _values("values_by_prompt", values_by_prompt)
    estimate = statistic(values, axis=-1)
    replicates = _replicates(lambda draws: statistic(values[draws], axis=-1), values.size, n, seed)
    return _interval(estimate, replicates)


def paired_bootstrap(a: ArrayLike, b: ArrayLike, n: int = DRAWS, seed: int = 0) -> Interval:
    """Interval of mean(a - b), where a[i] and b[i] belong to the same prompt."""
    first = _values("a", a)
    second = _values("b", b)
    if first.size != second.size:
        raise ValueError(
            f"paired values must be of the same prompts: {first.size} and {second.size} given"
        )
    return bootstrap(first - second, n=n, seed=seed)


def ratio_bootstrap(
    numerators: ArrayLike, denominators: ArrayLike, n: int = DRAWS, seed: int = 0
) -> Interval:
    """Interval of sum(numerators) / sum(denominators), with one of each per prompt.

    An example is the number of error-free segments over all segments. Prompts for which both are 0
    say nothing about the ratio and are left out, and so are samples whose denominators are all 0.
    If all prompts have the denominator 0, the ratio is 0.
    """
    above = _values("numerators", numerators)
    below = _values("denominators", denominators)
    if above.size != below.size:
        raise ValueError(
            f"as many numerators as denominators are needed: {above.size} and {below.size} given"
        )
    above, below = _without_zeros([above, below])
    estimate = _ratio(above.sum(), below.sum())
    return _interval(estimate, _ratio_replicates(above, below, n, seed))


def paired_ratio_bootstrap(
    a: tuple[ArrayLike, ArrayLike], b: tuple[ArrayLike, ArrayLike], n: int = DRAWS, seed: int = 0
) -> Interval:
    """Interval of the ratio of a minus the ratio of b, as in `ratio_bootstrap`.

    Prompts for which all four numbers are 0 are left out, and so are samples in which one side has
    no ratio, because all its denominators are 0.

    Args:
      a, b: (numerators, denominators), a number of each per prompt.

    Raises:
      ValueError: the four columns are not equally long, or one is empty or not finite.
    """
    columns = [_values("numerators and denominators", column) for column in (*a, *b)]
    if len({column.size for column in columns}) != 1:
        raise ValueError("paired ratios must be of the same prompts")
    above_a, below_a, above_b, below_b = _without_zeros(columns)
    estimate = _ratio(above_a.sum(), below_a.sum()) - _ratio(above_b.sum(), below_b.sum())
    # The same seed draws the same prompts for both sides.
    drawn_a = _ratio_replicates(above_a, below_a, n, seed)
    drawn_b = _ratio_replicates(above_b, below_b, n, seed)
    return _interval(estimate, drawn_a - drawn_b)


def independent_ratio_bootstrap(
    a: tuple[ArrayLike, ArrayLike], b: tuple[ArrayLike, ArrayLike], seed: int = 0
) -> Interval:
    """Interval of the ratio of a minus the ratio of b, which have different prompts.

    Each side is resampled by itself, so that every sample has prompts of both. Samples of all
    prompts together could have none of a small side.

    Args:
      a, b: (numerators, denominators), a number of each per prompt of that side.

    Raises:
      ValueError: the two columns of a side are not equally long, or one is empty or not finite.
    """
    generator = np.random.default_rng(seed)
    estimates = []
    replicates = []
    for side in (a, b):
        above, below = (_values("numerators and denominators", column) for column in side)
        if above.size != below.size:
            raise ValueError(
                "as many numerators as denominators are needed:"
                f" {above.size} and {below.size} given"
            )
        above, below = _without_zeros([above, below])
        estimates.append(_ratio(above.sum(), below.sum()))
        replicates.append(_ratio_replicates(above, below, DRAWS, generator))
    return _interval(estimates[0] - estimates[1], replicates[0] - replicates[1])


def _ratio_replicates(
    above: np.ndarray, below: np.ndarray, n: int, seed: int | np.random.Generator
) -> np.ndarray:
    """sum(above) / sum(below) of each of n draws of prompts; NaN for a draw with sum(below) = 0."""
    if above.size > 1 and not below.any():
        return np.zeros(n)

    def ratio(draws: np.ndarray) -> np.ndarray:
        drawn = below[draws].sum(-1)
        return np.where(drawn == 0, np.nan, _ratio(above[draws].sum(-1), drawn))

    return _replicates(ratio, above.size, n, seed)


def _without_zeros(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The columns without the prompts for which all of them are 0; all prompts if none is left."""
    table = np.stack(columns)
    says_something = table.any(0)
    return table[:, says_something] if says_something.any() else table


def _ratio(numerator, denominator):
    """Elementwise ratio; 0 if the denominator is 0."""
    nonzero = np.asarray(denominator) != 0
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=nonzero)


def pooled_bootstrap(
    counts_by_prompt: ArrayLike,
    statistic: Callable[[Sequence[float]], float],
    seed: int = 0,
) -> Interval:
    """Interval of statistic(sum over prompts of counts), e.g. corpus-level BLEU.

    theta*_i = statistic(sum of the counts of sample i). A mean of the statistic over
    prompts would be another quantity: here, prompts with long responses have more weight.

    Args:
      counts_by_prompt: (Q, C), the C counts of each prompt.
      statistic: C summed counts -> number.
    Raises:
      ValueError: there are no prompts, or a count is not finite.
    """
    counts_QC = _counts(counts_by_prompt)
    replicates = _pooled_replicates(counts_QC, statistic, DRAWS, seed)
    return _interval(statistic(counts_QC.sum(0).tolist()), replicates)


def paired_pooled_bootstrap(
    a: ArrayLike,
    b: ArrayLike,
    statistic: Callable[[Sequence[float]], float],
    seed: int = 0,
) -> Interval:
    """Interval of the statistic of a minus that of b, as in `pooled_bootstrap`.

    Args:
      a, b: (Q, C), the C counts of each prompt; a[i] and b[i] belong to the same prompt.
    Raises:
      ValueError: there are not as many prompts in both, none, or a count is not finite.
    """
    counts = [_counts(a), _counts(b)]
    if len(counts[0]) != len(counts[1]):
        raise ValueError(
            f"paired counts must be of the same prompts: {len(counts[0])} and {len(counts[1])}"
            " given"
        )
    estimates = [statistic(counts_QC.sum(0).tolist()) for counts_QC in counts]
    # The same seed draws the same prompts for both sides.
    drawn = [_pooled_replicates(counts_QC, statistic, DRAWS, seed) for counts_QC in counts]
    return _interval(estimates[0] - estimates[1], drawn[0] - drawn[1])


def _counts(counts_by_prompt: ArrayLike) -> np.ndarray:
    """counts_QC, checked."""
    counts_QC = np.asarray(counts_by_prompt, dtype=np.float64)
    if counts_QC.ndim != 2 or counts_QC.size == 0:
        raise ValueError(
            f"counts_by_prompt must be a table of one or more prompts, got shape {counts_QC.shape}"
        )
    if not np.isfinite(counts_QC).all():
        raise ValueError("counts_by_prompt has a number that is not finite")
    return counts_QC


def _pooled_replicates(
    counts_QC: np.ndarray, statistic: Callable[[Sequence[float]], float], n: int, seed: int
) -> np.ndarray:
    """The statistic of the summed counts of each of n draws of prompts."""
    prompts = len(counts_QC)

    def statistics(draws: np.ndarray) -> np.ndarray:
        # how often each draw contains each prompt
        times_NQ = np.stack([np.bincount(draw, minlength=prompts) for draw in draws])
        return np.array([statistic(sums_C) for sums_C in (times_NQ @ counts_QC).tolist()])

    return _replicates(statistics, prompts, n, seed)


def seed_interval(differences: Sequence[np.ndarray]) -> Interval:
    """The mean difference over several seeds on the same prompts, with a 95% interval.

    The half-widths of an interval over prompts (bootstrap of the mean over seeds) and of an
    interval over seeds (Student's t on the seeds' means) are added in quadrature. With one seed
    only the first is used. With one prompt there is no interval.

    Args:
      differences: one array per seed, of one difference per prompt.
    """
    stacked = np.stack(differences)
    over_prompts = bootstrap(stacked.mean(0))
    seeds = len(differences)
    if seeds == 1 or not over_prompts.has_bounds:
        return over_prompts
    seed_error = stacked.mean(1).std(ddof=1) / np.sqrt(seeds)
    half_over_seeds = _upper_t((1 - LEVEL) / 2, seeds - 1) * seed_error
    half_over_prompts = (over_prompts.high - over_prompts.low) / 2
    half = float(np.hypot(half_over_prompts, half_over_seeds))
    return Interval(over_prompts.mean, over_prompts.mean - half, over_prompts.mean + half)


def _upper_normal(p: float) -> float:
    """The number that a standard normal variable exceeds with probability p."""
    return -float(ndtri(p))


def _upper_t(p: float, degrees: int) -> float:
    """The number that Student's t with so many degrees of freedom exceeds with probability p."""
    return -float(stdtrit(degrees, p))


def seed_p_value(differences: Sequence[np.ndarray]) -> float:
    """The two-sided p-value of no difference, by the construction of `seed_interval`.

    p is the smallest number for which the (1 - p) interval still reaches zero: the root of

        sqrt((z(p) * s_q)^2 + (t(p) * s_s)^2) = |mean|

    z(p) and t(p) are the upper p/2 quantiles of the normal distribution and of Student's t (with
    seeds - 1 degrees of freedom), s_q is the standard error over prompts (a 95% bootstrap interval
    is 2 * 1.96 of them wide) and s_s the one over seeds. Normal tails are used because 2,000
    bootstrap draws are too few for a p-value of 0.0005. With one seed s_s = 0.

    With n prompts p is at least 2^(1 - n), the probability that n differences have the same sign if
    there is no difference. The bootstrap alone would call too much significant: a few prompts may
    have similar differences by chance. With at least six prompts and several seeds, p < 0.05
    exactly if the interval of `seed_interval` excludes zero.
    """
    from scipy.optimize import root_scalar  # slow to import, and only comparisons of seeds need it

    stacked = np.stack(differences)
    if stacked.shape[1] == 1:
        return 1.0
    over_prompts = bootstrap(stacked.mean(0))
    mean = abs(over_prompts.mean)
    prompt_error = (over_prompts.high - over_prompts.low) / 2 / _upper_normal((1 - LEVEL) / 2)
    seeds = len(differences)
    seed_error = stacked.mean(1).std(ddof=1) / np.sqrt(seeds) if seeds > 1 else 0.0
    least = 2.0 ** (1 - stacked.shape[1])
    if prompt_error == 0 and seed_error == 0:
        return 1.0 if mean == 0 else least

    def half_width(p: float) -> float:
        over_seeds = _upper_t(p / 2, seeds - 1) * seed_error if seeds > 1 else 0.0
        return float(np.hypot(_upper_normal(p / 2) * prompt_error, over_seeds))

    # half_width decreases as p increases, to 0 at p = 1; solve for log10 p
    smallest = -300.0
    if half_width(10**smallest) <= mean:
        return least
    root = root_scalar(
        lambda log_p: half_width(10**log_p) - mean,
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


def wilson(successes: float, trials: float) -> Interval:
    """The share of successes with Wilson's 95% interval, which never leaves [0, 1].

        (p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),  p = successes / n

    The trials must be independent of each other. Numbers that are not whole are allowed, for an
    effective number of trials.

    Raises:
      ValueError: there are no trials, or more successes than trials.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} successes in {trials} trials have no share")
    p = successes / trials
    z = _upper_normal((1 - LEVEL) / 2)
    middle = p + z**2 / (2 * trials)
    half = z * math.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    scale = 1 + z**2 / trials
    return Interval(p, max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0))
