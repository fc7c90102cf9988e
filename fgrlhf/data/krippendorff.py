"""Krippendorff's alpha, nominal and ordinal, with an interval over items."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array

from fgrlhf.stats import Figure, interval_of, jackknifed

Units = Sequence[Sequence[Hashable]]  # for each unit of an item, the annotators' values
Alphas = Callable[[np.ndarray], np.ndarray]  # weights of N items [B, N] -> alphas [B]
AT_ONCE = 50  # items that are left out at a time, which bounds the memory
FEWEST_ITEMS = 10  # that an interval needs: with five it would cover .84
NOT_SHARED = "no response was judged by two annotators"


def coincidences(units: Units, values: Mapping[Hashable, int]) -> np.ndarray:
    """Krippendorff's coincidence matrix.

        o_ck = sum_u n_uc (n_uk - [c = k]) / (m_u - 1)

    The sum is over the units u with m_u > 1 values, of which n_uc are c.

    Args:
      units: for each unit, the values that annotators gave it.
      values: the row of the matrix for each value.

    Returns:
      [C, C].
    """
    matrix = np.zeros((len(values), len(values)))
    for unit in units:
        if len(unit) < 2:
            continue
        counts = np.bincount([values[value] for value in unit], minlength=len(values))
        counts = counts.astype(float)
        matrix += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    return matrix


def ordinal(margins: np.ndarray) -> np.ndarray:
    """Squared distances of ranks.

        d_ck = n_c / 2 + sum_{c < g < k} n_g + n_k / 2   for c < k

    Values are in the order of the margins n, from the lowest to the highest.
    """
    # the middle of each value's share of the ordered values
    middles = np.cumsum(margins, axis=-1) - margins / 2
    return (middles[..., :, None] - middles[..., None, :]) ** 2


def ordinal_alpha(matrix: np.ndarray) -> np.ndarray:
    """Ordinal alpha of a coincidence matrix; NaN if only one value is used.

        alpha = 1 - (n - 1) sum_ck o_ck d_ck^2 / sum_ck n_c n_k d_ck^2

    matrix: [..., C, C]. Krippendorff (2011), Computing Krippendorff's Alpha-Reliability.
    """
    margins = matrix.sum(-1)
    squared = ordinal(margins)
    observed = (matrix * squared).sum((-2, -1))
    expected = (margins[..., :, None] * margins[..., None, :] * squared).sum((-2, -1))
    return _ratio_alpha(margins.sum(-1), observed, expected)


def nominal_alpha(margins: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Nominal alpha; NaN if only one value is used.

    The distance of two values is 1, so the sums of `ordinal_alpha` need no coincidence matrix:

        sum_{c != k} n_c n_k = n^2 - sum_c n_c^2

    Args:
      margins: [..., C], how often each value was given.
      observed: [...], the sum of the coincidences of different values.
    """
    n = margins.sum(-1)
    return _ratio_alpha(n, observed, n**2 - (margins**2).sum(-1))


def _ratio_alpha(n: np.ndarray, observed: np.ndarray, expected: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(expected > 0, 1 - (n - 1) * observed / expected, np.nan)


def alpha(
    units_of_items: Sequence[Units],
    values: Sequence[Hashable] | None = None,
    nothing: str = NOT_SHARED,
    clusters: Sequence[Hashable] | None = None,
) -> Figure:
    """Alpha with its interval over items, each with all its units.

    The pseudo-values of `fgrlhf.stats` leave out an item or a cluster of items. Alpha is from -1 to
    1, so the interval is that of the share (1 + alpha) / 2.

    Args:
      units_of_items: for each item, its units; for each unit, the values that annotators gave it.
      values: the values from the lowest to the highest, for ordinal alpha; None: nominal alpha.
      nothing: the reason to give if no unit has two values.
      clusters: of each item, the name of its cluster; None: each item is one.
    """
    names = range(len(units_of_items)) if clusters is None else clusters
    shared = []
    rows = []  # the cluster of each
    places: dict[Hashable, int] = {}
    for units, name in zip(units_of_items, names, strict=True):
        pairable = [unit for unit in units if len(unit) > 1]
        if pairable:
            shared.append(pairable)
            rows.append(places.setdefault(name, len(places)))
    used = {value for units in shared for unit in units for value in unit}
    if not used:
        return f"undefined: {nothing}"
    if len(used) == 1:
        value = next(iter(used))
        return f"undefined: all annotators chose {value!r}, so the expected disagreement is 0"
    alphas_of = _nominal_alphas(shared) if values is None else _ordinal_alphas(shared, values)
    (mean,) = alphas_of(np.ones((1, len(shared))))
    without = _without_each(alphas_of, np.array(rows))
    pseudo = jackknifed(float(mean), without) if len(places) > 1 else without
    return interval_of(float(mean), pseudo, (-1.0, 1.0), FEWEST_ITEMS)


def _ordinal_alphas(items: Sequence[Units], values: Sequence[Hashable]) -> Alphas:
    """Ordinal alpha as a function of the items' weights. There are few values, so C is small."""
    places = {value: i for i, value in enumerate(values)}
    matrices = np.stack([coincidences(units, places) for units in items])
    return lambda weights: ordinal_alpha(np.tensordot(weights, matrices, axes=1))


def _nominal_alphas(items: Sequence[Units]) -> Alphas:
    """Nominal alpha as a function of the items' weights.

    Labels can be free texts, so C can be large. Each item has few of them: the matrix is sparse.
    """
    places: dict[Hashable, int] = {}  # value -> its column
    counts: list[int] = []
    rows: list[int] = []
    columns: list[int] = []
    observed = np.zeros(len(items))
    for row, units in enumerate(items):
        for unit in units:
            given = Counter(unit)
            for value, count in given.items():
                counts.append(count)
                rows.append(row)
                columns.append(places.setdefault(value, len(places)))
            equal = sum(count**2 for count in given.values())
            observed[row] += (len(unit) ** 2 - equal) / (len(unit) - 1)
    margins_NC = csr_array((counts, (rows, columns)), shape=(len(items), len(places)), dtype=float)
    return lambda weights: nominal_alpha((margins_NC.T @ weights.T).T, weights @ observed)


def _without_each(alphas_of: Alphas, clusters_N: np.ndarray) -> np.ndarray:
    """Alpha without each cluster; NaN if the others have one value only, or if there are none.

    Args:
      alphas_of: of weights of the items.
      clusters_N: the cluster of each item, from 0.
    """
    count = int(clusters_N.max()) + 1
    parts = []
    for start in range(0, count, AT_ONCE):
        left_out = np.arange(start, min(start + AT_ONCE, count))
        parts.append(alphas_of((clusters_N != left_out[:, None]).astype(float)))
    return np.concatenate(parts)
