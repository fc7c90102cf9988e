"""Whether annotators put responses in the same order and at the same distances.

Krippendorff's alpha of scores also counts it as disagreement if one annotator gives lower scores
throughout; this correlation does not:

    ICC(C,1) = sum_i sum_{a != b} d_ia d_ib / (m_i - 1) / sum_i sum_a d_ia^2,  d_ia = x_ia - mean_a

x_ia is the score of response i by annotator a, m_i > 1 the number of its scores, and mean_a the
mean of an annotator over these responses. If all annotators scored all responses, this is the mean
covariance of two annotators over the mean variance: the intraclass correlation of consistency.
McGraw & Wong (1996), Forming Inferences About Some Intraclass Correlation Coefficients,
Psychological Methods 1, 30-46.

Axes here: N responses, A annotators, B sets of weights of the responses.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array

from fgrlhf.data.agreement.alpha import NOT_SHARED, weighted_figure
from fgrlhf.stats import ROUNDING, Figure


def consistency(
    scores: Sequence[Mapping[str, float]],
    clusters: Sequence[Hashable],
    nothing: str = NOT_SHARED,
) -> Figure:
    """ICC(C,1) with its interval over clusters of responses.

    Args:
      scores: of each response, by annotator; those of a single annotator are left out.
      clusters: of each response, the name of its cluster.
      nothing: the reason to give if no response has two scores.
    """
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    names = []
    places: dict[str, int] = {}
    for by_annotator, name in zip(scores, clusters, strict=True):
        if len(by_annotator) < 2:
            continue
        for annotator, score in by_annotator.items():
            rows.append(len(names))
            columns.append(places.setdefault(annotator, len(places)))
            values.append(score)
        names.append(name)
    if not names:
        return f"undefined: {nothing}"
    x = np.array(values, dtype=float) - float(np.mean(values))  # smaller squares
    table = _Scores(np.array(rows), np.array(columns), x)
    if np.isnan(table.correlations(np.ones((1, len(names))))[0]):
        return "undefined: no annotator gave two different scores"
    return weighted_figure(table.correlations, names)


class _Scores:
    """The scores as a table [N, A] with gaps: its rows, its columns and their values."""

    def __init__(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        self._rows, self._columns, self._values = rows, columns, values
        shape = (int(rows.max()) + 1, int(columns.max()) + 1)
        self._given_NA = csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
        self._scores_NA = csr_array((values, (rows, columns)), shape=shape)
        sum_of_rows = (np.ones(len(rows)), (rows, np.arange(len(rows))))
        self._sum_NV = csr_array(sum_of_rows, shape=(shape[0], len(rows)))
        self._pairs_N = self._given_NA.sum(1) - 1

    def correlations(self, weights_BN: np.ndarray) -> np.ndarray:
        """ICC(C,1) with weights of the responses [B]; NaN if nobody's scores differ."""
        counts_BA = (self._given_NA.T @ weights_BN.T).T
        sums_BA = (self._scores_NA.T @ weights_BN.T).T
        means_BA = np.divide(sums_BA, counts_BA, out=np.zeros_like(sums_BA), where=counts_BA > 0)
        differences_BV = self._values - means_BA[:, self._columns]
        squares_BN = (self._sum_NV @ (differences_BV**2).T).T
        sums_BN = (self._sum_NV @ differences_BV.T).T
        shared_B = (weights_BN * (sums_BN**2 - squares_BN) / self._pairs_N).sum(1)
        total_B = (weights_BN * squares_BN).sum(1)
        rounding = (ROUNDING * np.abs(self._values).max()) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(total_B > rounding, shared_B / total_B, np.nan)
