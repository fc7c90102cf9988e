"""Krippendorff's alpha, nominal and ordinal, with a bootstrap interval over items."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array

from fgrlhf.stats import Figure, Interval

Units = Sequence[Sequence[Hashable]]  # for each unit of an item, the annotators' values
Alphas = Callable[[np.ndarray], np.ndarray]  # weights of N items [B, N] -> alphas [B]
DRAWS = 2000
DRAWS_AT_ONCE = 50  # bounds the memory
SEED = 0
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
) -> Figure:
    """Alpha with a bootstrap interval over items, each with all its units.

    Args:
      units_of_items: for each item, its units; for each unit, the values that annotators gave it.
      values: the values from the lowest to the highest, for ordinal alpha; None: nominal alpha.
      nothing: the reason to give if no unit has two values.
    """
    shared = [[unit for unit in units if len(unit) > 1] for units in units_of_items]
    shared = [units for units in shared if units]
    used = {value for units in shared for unit in units for value in unit}
    if not used:
        return f"undefined: {nothing}"
    if len(used) == 1:
        value = next(iter(used))
        return f"undefined: all annotators chose {value!r}, so the expected disagreement is 0"
    alphas_of = _nominal_alphas(shared) if values is None else _ordinal_alphas(shared, values)
    (mean,) = alphas_of(np.ones((1, len(shared))))
    return Interval(float(mean), *_bootstrap_interval(alphas_of, len(shared)))


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


def _bootstrap_interval(alphas_of: Alphas, count: int) -> tuple[float, float]:
    """The 95% interval of alpha over draws of items.

    NaN if every draw has only one value, or if there is one item, of which all draws are equal.

    Args:
      count: the number of items.
    """
    if count == 1:
        return math.nan, math.nan
    generator = np.random.default_rng(SEED)
    replicates = []
    for start in range(0, DRAWS, DRAWS_AT_ONCE):
        draws = generator.integers(count, size=(min(DRAWS_AT_ONCE, DRAWS - start), count))
        # how often each draw contains each item: the sums of a draw are then weighted sums
        weights = np.stack([np.bincount(draw, minlength=count) for draw in draws])
        replicates.append(alphas_of(weights.astype(float)))
    values = np.concatenate(replicates)
    values = values[np.isfinite(values)]
    if values.size == 0:
        return math.nan, math.nan
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
