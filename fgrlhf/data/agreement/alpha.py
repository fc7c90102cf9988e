"""Krippendorff's alpha, nominal, ordinal and interval, with an interval over items.

    alpha = 1 - (n - 1) sum_ck o_ck d_ck^2 / sum_ck n_c n_k d_ck^2
    o_ck = sum_u n_uc (n_uk - [c = k]) / (m_u - 1)

with the coincidences o_ck of the values c and k, their margins n_c and the sum n of the margins.
The sum is over the units u with m_u > 1 values, of which n_uc are c. Krippendorff (2011), Computing
Krippendorff's Alpha-Reliability.

Axes here: N items, C values, U units, V given values, B sets of weights of the items.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array

from fgrlhf.stats import Figure, interval_of, jackknifed

Units = Sequence[Sequence[Hashable]]  # for each unit of an item, the annotators' values
Level = Literal["nominal", "ordinal", "interval"]
Alphas = Callable[[np.ndarray], np.ndarray]  # weights of N items [B, N] -> alphas [B]
AT_ONCE = 50  # items that are left out at a time, which bounds the memory
FEWEST_ITEMS = 10  # that an interval needs: with five it would cover .84
NOT_SHARED = "no response was judged by two annotators"


def nominal_alpha(margins: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Nominal alpha; NaN if only one value is used.

    The distance of two values is 1, so the sums need no coincidence matrix:

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
    values: Sequence[Hashable] = (),
    nothing: str = NOT_SHARED,
    clusters: Sequence[Hashable] | None = None,
    level: Level = "nominal",
) -> Figure:
    """Alpha with its interval over items, each with all its units.

    The pseudo-values of `fgrlhf.stats` leave out an item or a cluster of items. Alpha is from -1 to
    1, so the interval is that of the share (1 + alpha) / 2.

    Args:
      units_of_items: for each item, its units; for each unit, the values that annotators gave it.
      values: for ordinal alpha, the values from the lowest to the highest.
      nothing: the reason to give if no unit has two values.
      clusters: of each item, the name of its cluster; None: each item is one.
      level: what the distance of two values is: 0 or 1, that of their ranks, or of the numbers.
    """
    names = range(len(units_of_items)) if clusters is None else clusters
    shared = []
    names_of_shared = []
    for units, name in zip(units_of_items, names, strict=True):
        pairable = [unit for unit in units if len(unit) > 1]
        if pairable:
            shared.append(pairable)
            names_of_shared.append(name)
    used = {value for units in shared for unit in units for value in unit}
    if not used:
        return f"undefined: {nothing}"
    if len(used) == 1:
        value = next(iter(used))
        return f"undefined: all annotators chose {value!r}, so the expected disagreement is 0"
    if level == "nominal":
        return weighted_figure(_nominal_alphas(shared), names_of_shared)
    if level == "ordinal":
        return weighted_figure(_ranked_alphas(shared, values, middle_ranks), names_of_shared)
    numbers: list[Any] = sorted(used)
    middle = sum(numbers) / len(numbers)  # alpha does not depend on it; squares get smaller
    places = np.array([float(number - middle) for number in numbers])
    alphas_of = _ranked_alphas(shared, numbers, lambda margins_BC: places + 0 * margins_BC)
    return weighted_figure(alphas_of, names_of_shared)


def weighted_figure(figures_of: Alphas, names: Sequence[Hashable]) -> Figure:
    """A figure from -1 to 1 with its interval, which leaves out each cluster of items.

    Args:
      figures_of: of weights of the items; NaN: undefined.
      names: the cluster of each item.
    """
    places: dict[Hashable, int] = {}
    rows_N = np.array([places.setdefault(name, len(places)) for name in names])
    (mean,) = figures_of(np.ones((1, len(names))))
    without = _without_each(figures_of, rows_N)
    pseudo = jackknifed(float(mean), without) if len(places) > 1 else without
    return interval_of(float(mean), pseudo, (-1.0, 1.0), FEWEST_ITEMS)


def middle_ranks(margins: np.ndarray) -> np.ndarray:
    """The middle of each value's share of the ordered values.

    Their distances are those of ordinal alpha:

        d_ck = n_c / 2 + sum_{c < g < k} n_g + n_k / 2   for c < k

    Values are in the order of the margins n [..., C], from the lowest to the highest.
    """
    return np.cumsum(margins, axis=-1) - margins / 2


def _ranked_alphas(
    items: Sequence[Units],
    values: Sequence[Hashable],
    places_of: Callable[[np.ndarray], np.ndarray],
) -> Alphas:
    """Alpha with squared distances of places on a line, as a function of the items' weights.

    The sums over pairs of values are sums over values. In a unit of m values at the places x,

        sum_{i, j} (x_i - x_j)^2 / (m - 1) = 2 m / (m - 1) sum_i (x_i - mean x)^2

    and in the margins sum_ck n_c n_k d_ck^2 = 2 n sum_c n_c (x_c - mean x)^2.

    Args:
      values: all that may occur, in their order.
      places_of: margins [B, C] -> the place of each value [B, C].
    """
    codes = {value: code for code, value in enumerate(values)}
    code_V = []
    unit_V = []
    item_V = []
    size_U = []
    for item, units in enumerate(items):
        for unit in units:
            code_V += [codes[value] for value in unit]
            unit_V += [len(size_U)] * len(unit)
            item_V += [item] * len(unit)
            size_U.append(len(unit))
    ones = np.ones(len(code_V))
    margins_NC = csr_array((ones, (item_V, code_V)), shape=(len(items), len(values)))
    sizes_V = np.array(size_U)[unit_V]
    mean_UV = csr_array((1 / sizes_V, (unit_V, np.arange(len(unit_V)))))
    factor_V = 2 * sizes_V / (sizes_V - 1)

    def alphas(weights_BN: np.ndarray) -> np.ndarray:
        margins_BC = (margins_NC.T @ weights_BN.T).T
        places_BC = places_of(margins_BC)
        n_B = margins_BC.sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            places_BC = places_BC - ((margins_BC * places_BC).sum(1) / n_B)[:, None]
        places_BV = places_BC[:, code_V]
        means_BU = (mean_UV @ places_BV.T).T
        squares_BV = (places_BV - means_BU[:, unit_V]) ** 2
        observed_B = (weights_BN[:, item_V] * factor_V * squares_BV).sum(1)
        expected_B = 2 * n_B * (margins_BC * places_BC**2).sum(1)
        is_defined_B = (margins_BC > 0).sum(1) > 1
        return _ratio_alpha(n_B, observed_B, np.where(is_defined_B, expected_B, 0.0))

    return alphas


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
    """The figure without each cluster; NaN if it is undefined for the others.

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
