"""The area under the ROC curve, with a 95% interval over prompts.

    AUC = mean over positives i and negatives j of [s_i > s_j] + [s_i = s_j] / 2

This is the statistic of Mann and Whitney. It is undefined if there are only positives or only
negatives. Leaving out a unit for the jackknife of fgrlhf/stats.py removes its positives and its
negatives.

Axes here: N scores, Q units (prompts).
"""

import math
from collections.abc import Sequence

import numpy as np

from fgrlhf.stats import (
    LEVEL,
    Clusters,
    Figure,
    Interval,
    interval_of,
    jackknifed,
    spread,
    too_few,
    upper_t,
)

FEWEST_OF_A_KIND = 10  # units with a positive, and with a negative, that an interval needs
ASSUMED_UNITS = 2  # as many as which the assumed variance counts
UNSEEN_TAIL = 2  # docs/metrics.md has what the intervals cover
BISECTIONS = 50
NOT_THE_SAME = "scores, kinds and units must be of the same cases"
ONE_KIND = "it needs cases of both kinds, and all {number} are of one"


def auc(scores_N: np.ndarray, positive_N: np.ndarray) -> float | None:
    """The area under the ROC curve; None if there are only positives or only negatives."""
    positives = int(positive_N.sum())
    negatives = len(positive_N) - positives
    if not positives or not negatives:
        return None
    wins_N = _wins(scores_N, positive_N)
    return float(wins_N[positive_N].sum() / (positives * negatives))


def auc_interval(
    scores: Sequence[float] | np.ndarray,
    positive: Sequence[bool] | np.ndarray,
    units: Clusters = None,
) -> Figure:
    """The AUC with its interval, or the reason why it is undefined.

    The interval has the areas A whose distance from the estimate is at most z r s(A), where s is
    `assumed_error`. r^2 is the jackknife's variance over the assumed one. It is little known if the
    wrong order of few units decides it, so that the assumed variance counts as much as
    ASSUMED_UNITS of them, but only upwards: with d `_deciding` units of the kind that has fewer,

        r^2 = max(r_j^2, (d r_j^2 + ASSUMED_UNITS) / (d + ASSUMED_UNITS))

    If few units of that kind, but many D of the other, are in the wrong order, their scores have a
    long tail, of which most was not seen. On the side of 1/2 r^2 is therefore greater by the factor

        1 + UNSEEN_TAIL (1 - d / D) / (1 + d)

    Inverting a test keeps the interval within 0 and 1, and an AUC of 1 has width. Cases of one unit
    are alike, but not equal, so s has the geometric mean of the units and the cases of each kind.

    Args:
      scores: of each case.
      positive: whether each case is a positive.
      units: of each case, the name of its prompt; None: every case is its own.
    """
    scores_N = np.asarray(scores)
    positive_N = np.asarray(positive, dtype=bool)
    unit_N = _numbered(units, len(positive_N))
    areas, numbers = _areas([scores_N], positive_N, unit_N)
    if areas is None:
        return ONE_KIND.format(number=len(positive_N))
    estimate, without_Q = areas[0]
    if min(numbers) < FEWEST_OF_A_KIND:
        return too_few(estimate, min(numbers), FEWEST_OF_A_KIND, " of the rarer kind")
    if not np.isfinite(without_Q).all():
        return Interval(estimate, math.nan, math.nan, "one unit decides whether the figure exists")
    lost_N = _wins(scores_N, positive_N if estimate < 0.5 else ~positive_N)
    fewer, more = sorted(
        _deciding(lost_N[kind], unit_N[kind]) for kind in (positive_N, ~positive_N)
    )
    cases = int(positive_N.sum()), int((~positive_N).sum())
    alike = [math.sqrt(units * count) for units, count in zip(numbers, cases, strict=True)]
    assumed = assumed_error(estimate, *alike)
    found = (spread(jackknifed(estimate, without_Q)).error / assumed) ** 2 if assumed else 1.0
    square = max(found, (fewer * found + ASSUMED_UNITS) / (fewer + ASSUMED_UNITS))
    unseen = 1 + UNSEEN_TAIL * (1 - fewer / more) / (1 + fewer) if more else 1.0
    return area_interval(estimate, square**0.5, unseen**0.5, *alike)


def auc_difference(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    positive: Sequence[bool] | np.ndarray,
    units: Clusters = None,
) -> Figure:
    """The AUC of the scores `a` minus that of `b`, for the same cases, with its interval."""
    cases = np.asarray(positive, dtype=bool)
    areas, numbers = _areas([np.asarray(a), np.asarray(b)], cases, _numbered(units, len(cases)))
    if areas is None:
        return ONE_KIND.format(number=len(cases))
    (first, without_first_Q), (second, without_second_Q) = areas
    difference = first - second
    pseudo_Q = jackknifed(difference, without_first_Q - without_second_Q)
    return interval_of(difference, pseudo_Q, fewest=FEWEST_OF_A_KIND, rarer=min(numbers))


def assumed_error(area: float, positives: float, negatives: float) -> float:
    """The standard error of the AUC of independent cases by Newcombe (2006), method 5.

        s^2 = A (1 - A) (1 + (M - 1) ((1 - A) / (2 - A) + A / (1 + A))) / (P N),  M = (P + N) / 2

    It is that of Hanley & McNeil (1982) for exponential scores, made symmetric: scores of the other
    sign have the same error. Statistics in Medicine 25, 559-573.
    """
    mean = (positives + negatives) / 2
    shape = (1 - area) / (2 - area) + area / (1 + area)
    return math.sqrt(area * (1 - area) * (1 + (mean - 1) * shape) / (positives * negatives))


def area_interval(
    estimate: float, factor: float, to_middle: float, positives: float, negatives: float
) -> Interval:
    """All areas A with |estimate - A| <= z factor s(A), where s is `assumed_error`.

    On the side of 1/2, the factor is multiplied by `to_middle`.
    """
    z = upper_t((1 - LEVEL) / 2, math.inf)

    def bound(outer: float) -> float:
        inner = estimate
        is_to_middle = (outer < estimate) == (estimate >= 0.5)
        reach = z * factor * (to_middle if is_to_middle else 1.0)
        for _ in range(BISECTIONS):
            middle = (inner + outer) / 2
            if abs(estimate - middle) <= reach * assumed_error(middle, positives, negatives):
                inner = middle
            else:
                outer = middle
        return inner

    return Interval(estimate, bound(0.0), bound(1.0))


def _deciding(lost_N: np.ndarray, unit_N: np.ndarray) -> float:
    """How many units decide a sum: that many equal ones would have its sum and sum of squares.

    (sum x)^2 / sum x^2 of the sums x of units; 0 if all are 0.
    """
    lost_Q = np.bincount(unit_N, weights=lost_N)
    squares = float((lost_Q**2).sum())
    return float(lost_Q.sum()) ** 2 / squares if squares else 0.0


def _numbered(units: Clusters, cases: int) -> np.ndarray:
    """unit_N: the number of each case's unit."""
    names = range(cases) if units is None else units
    if len(names) != cases:
        raise ValueError(NOT_THE_SAME)
    places: dict = {}
    return np.array([places.setdefault(name, len(places)) for name in names], dtype=np.int64)


def _wins(scores_N: np.ndarray, positive_N: np.ndarray) -> np.ndarray:
    """For each case, the number of the other kind that it is ordered rightly with; ties half."""
    ordered = {kind: np.sort(scores_N[positive_N == kind]) for kind in (True, False)}
    below_N = _below(ordered[False], scores_N)
    above_N = len(ordered[True]) - _below(ordered[True], scores_N)
    return np.where(positive_N, below_N, above_N)


def _below(ordered: np.ndarray, scores_N: np.ndarray) -> np.ndarray:
    """How many of the ordered numbers are below each score; equal ones count half."""
    low = np.searchsorted(ordered, scores_N, side="left")
    high = np.searchsorted(ordered, scores_N, side="right")
    return (low + high) / 2


def _areas(
    scores: Sequence[np.ndarray], positive_N: np.ndarray, unit_N: np.ndarray
) -> tuple[list[tuple[float, np.ndarray]] | None, tuple[int, int]]:
    """(AUC, AUC without each unit) of each array, and the units with a positive and a negative.

    None instead of the areas if there are only positives or only negatives.
    """
    if any(len(x) != len(positive_N) for x in scores):
        raise ValueError(NOT_THE_SAME)
    units = int(unit_N.max(initial=-1)) + 1
    positives_Q = np.bincount(unit_N[positive_N], minlength=units)
    negatives_Q = np.bincount(unit_N[~positive_N], minlength=units)
    if not positives_Q.sum() or not negatives_Q.sum():
        return None, (0, 0)
    several = np.flatnonzero(positives_Q * negatives_Q)  # units with pairs of their own
    within = [np.flatnonzero(unit_N == unit) for unit in several]
    areas = []
    for scores_N in scores:
        wins_N = _wins(scores_N, positive_N)
        total = wins_N[positive_N].sum()
        # pairs of a unit with all others and itself; those within it were counted twice
        lost_Q = np.bincount(unit_N, weights=wins_N, minlength=units)
        for unit, chosen in zip(several, within, strict=True):
            wins = _wins(scores_N[chosen], positive_N[chosen])
            lost_Q[unit] -= wins[positive_N[chosen]].sum()
        pairs_Q = (positives_Q.sum() - positives_Q) * (negatives_Q.sum() - negatives_Q)
        without_Q = np.full(units, np.nan)
        np.divide(total - lost_Q, pairs_Q, out=without_Q, where=pairs_Q > 0)
        areas.append((float(total / (positives_Q.sum() * negatives_Q.sum())), without_Q))
    return areas, (int((positives_Q > 0).sum()), int((negatives_Q > 0).sum()))
