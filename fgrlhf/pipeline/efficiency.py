"""Sample efficiency: the episodes after which one run reaches the final level of another.

Axes here: S seeds, N evaluations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fgrlhf.pipeline.scores import Point
from fgrlhf.stats import LEVEL

DRAWS = 2000  # of the bootstrap over seeds


@dataclass(frozen=True)
class Efficiency:
    """When the mean curve of a run over seeds reached a level on dev.

    Attributes:
      episodes: of the first evaluation at the level or beyond; None if there is none.
      low, high: 95% interval of `episodes`, a bootstrap over seeds; None: not reached. With one
        seed there is no interval, and both are `episodes`.
    """

    episodes: float | None
    low: float | None
    high: float | None


def efficiency(
    curves: Sequence[Sequence[Point]],
    baseline: Sequence[Sequence[Point]],
    higher_is_better: bool = True,
) -> Efficiency:
    """The episodes after which a run first reaches the last score of a baseline.

    Both scores are means over seeds, since a single curve crosses a level by chance. A seed that
    stopped early keeps its last score, since its policy no longer changes.

    Args:
      curves, baseline: for each seed the evaluations on dev. `efficiency(baseline, baseline)` tells
        when the baseline itself first reached its last score.
      higher_is_better: whether a score reaches a level from below. It is a property of the metric:
        the curves cannot tell, since a baseline may have become worse.

    Raises:
      ValueError: the numbers of seeds differ, or a curve has no point.
    """
    if len(curves) != len(baseline) or not all(curves) or not all(baseline):
        raise ValueError("both runs need the same seeds, with at least one evaluation each")
    episodes_N, scores_SN = _on_common_grid(curves)
    _, baseline_SN = _on_common_grid(baseline)
    seeds = len(curves)
    sign = 1 if higher_is_better else -1

    def reached(seeds_S: np.ndarray) -> float:
        """The episodes at which the mean of these seeds reaches the level; inf if it does not."""
        level = baseline_SN[seeds_S].mean(0)[-1]
        is_reached_N = sign * scores_SN[seeds_S].mean(0) >= sign * level
        return float(episodes_N[is_reached_N.argmax()]) if is_reached_N.any() else np.inf

    draws = np.random.default_rng(0).integers(seeds, size=(DRAWS, seeds))
    replicates = [reached(draw) for draw in draws]
    tail = (1 - LEVEL) / 2
    # Each bound is one of the replicates: a number and "never" (inf) cannot be averaged.
    low, high = np.quantile(replicates, [tail, 1 - tail], method="inverted_cdf")
    estimate = reached(np.arange(seeds))
    values = [None if value == np.inf else float(value) for value in (estimate, low, high)]
    return Efficiency(*values)


def _on_common_grid(curves: Sequence[Sequence[Point]]) -> tuple[np.ndarray, np.ndarray]:
    """episodes_N at which a seed was evaluated, and scores_SN, the latest of each seed by then.

    Seeds are evaluated after the same episodes, except at an early stop. The grid begins where
    every seed has a score.
    """
    start = max(curve[0].episodes for curve in curves)
    all_episodes = {point.episodes for curve in curves for point in curve}
    episodes_N = np.array(sorted(episodes for episodes in all_episodes if episodes >= start))
    scores = []
    for curve in curves:
        places_N = np.searchsorted([point.episodes for point in curve], episodes_N, side="right")
        scores.append(np.array([point.score for point in curve])[places_N - 1])
    return episodes_N, np.stack(scores)
