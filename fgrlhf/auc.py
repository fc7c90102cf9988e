"""The area under the ROC curve, with a 95% interval over prompts.

    AUC = mean over positives i and negatives j of [s_i > s_j] + [s_i = s_j] / 2

This is the statistic of Mann and Whitney. It is undefined if there are only positives or only
negatives. The intervals have the construction of fgrlhf/stats.py: leaving out a unit removes its
positives and its negatives.

Axes here: N scores, Q units (prompts).
"""

from collections.abc import Sequence

import numpy as np

from fgrlhf.stats import Clusters, Figure, interval_of, jackknifed

FEWEST_OF_A_KIND = 10  # units with a positive, and with a negative, that an interval needs
LEAST_ERROR = 0.5
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

    Args:
      scores: of each case.
      positive: whether each case is a positive.
      units: of each case, the name of its prompt; None: every case is its own.
    """
    cases = np.asarray(positive, dtype=bool)
    areas, rarer = _areas([np.asarray(scores)], cases, units)
    if areas is None:
        return ONE_KIND.format(number=len(cases))
    estimate, without_Q = areas[0]
    return interval_of(
        estimate,
        jackknifed(estimate, without_Q),
        limits=(0.0, 1.0),
        fewest=FEWEST_OF_A_KIND,
        rarer=rarer,
        least_error=LEAST_ERROR
        * _independent_error(estimate, int(cases.sum()), int((~cases).sum())),
    )


def auc_difference(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    positive: Sequence[bool] | np.ndarray,
    units: Clusters = None,
) -> Figure:
    """The AUC of the scores `a` minus that of `b`, for the same cases, with its interval."""
    cases = np.asarray(positive, dtype=bool)
    areas, rarer = _areas([np.asarray(a), np.asarray(b)], cases, units)
    if areas is None:
        return ONE_KIND.format(number=len(cases))
    (first, without_first_Q), (second, without_second_Q) = areas
    difference = first - second
    pseudo_Q = jackknifed(difference, without_first_Q - without_second_Q)
    return interval_of(difference, pseudo_Q, fewest=FEWEST_OF_A_KIND, rarer=rarer)


def _independent_error(area: float, positives: int, negatives: int) -> float:
    """The standard error of the AUC of independent cases by Hanley & McNeil (1982), equation 1.

        s^2 = (A (1 - A) + (P - 1) (A / (2 - A) - A^2) + (N - 1) (2 A^2 / (1 + A) - A^2)) / (P N)

    The jackknife's is too small where few cases of the rarer kind decide, all of them well ordered
    by chance, so it is not used below LEAST_ERROR times this. Radiology 143, 29-36.
    """
    folded = max(area, 1 - area)  # scores with the other sign have the same error
    of_positives = (positives - 1) * (folded / (2 - folded) - folded**2)
    of_negatives = (negatives - 1) * (2 * folded**2 / (1 + folded) - folded**2)
    variance = folded * (1 - folded) + of_positives + of_negatives
    return float(np.sqrt(max(variance, 0.0) / (positives * negatives)))


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
    scores: Sequence[np.ndarray], positive_N: np.ndarray, units: Clusters
) -> tuple[list[tuple[float, np.ndarray]] | None, int]:
    """(AUC, AUC without each unit) of each array, and the units that have the rarer kind.

    None instead of the areas if there are only positives or only negatives.
    """
    names = range(len(positive_N)) if units is None else units
    if len(names) != len(positive_N) or any(len(x) != len(positive_N) for x in scores):
        raise ValueError("scores, kinds and units must be of the same cases")
    places: dict = {}
    unit_N = np.array([places.setdefault(name, len(places)) for name in names], dtype=np.int64)
    positives_Q = np.bincount(unit_N[positive_N], minlength=len(places))
    negatives_Q = np.bincount(unit_N[~positive_N], minlength=len(places))
    if not positives_Q.sum() or not negatives_Q.sum():
        return None, 0
    cases = [np.flatnonzero(unit_N == unit) for unit in range(len(places))] if units else []
    areas = []
    for scores_N in scores:
        wins_N = _wins(scores_N, positive_N)
        total = wins_N[positive_N].sum()
        # pairs of a unit with all others and itself; those within it were counted twice
        lost_Q = np.bincount(unit_N, weights=wins_N, minlength=len(places))
        for unit, chosen in enumerate(cases):
            within = _wins(scores_N[chosen], positive_N[chosen])
            lost_Q[unit] -= within[positive_N[chosen]].sum()
        pairs_Q = (positives_Q.sum() - positives_Q) * (negatives_Q.sum() - negatives_Q)
        without_Q = np.full(len(places), np.nan)
        np.divide(total - lost_Q, pairs_Q, out=without_Q, where=pairs_Q > 0)
        areas.append((float(total / (positives_Q.sum() * negatives_Q.sum())), without_Q))
    return areas, int(min((positives_Q > 0).sum(), (negatives_Q > 0).sum()))
