"""Sample efficiency: the episodes after which one run reaches the final level of another."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fgrlhf.pipeline.experiments import Point
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
    higher_is_better: bool | None = None,
) -> Efficiency:
    """The episodes after which a run first reaches the last score of a baseline.

    Both scores are means over seeds, since a single curve crosses a level by chance.

    Args:
      curves, baseline: for each seed the same evaluations on dev. `efficiency(baseline, baseline)`
        tells when the baseline itself first reached its last score.
      higher_is_better: None: the direction in which the baseline has moved from its first
        evaluation to its last one.

    Raises:
      ValueError: the numbers of seeds differ, or a curve has no point.
    """
    if len(curves) != len(baseline) or not all(curves) or not all(baseline):
        raise ValueError("both runs need the same seeds, with at least one evaluation each")
    scores_SN = _scores(curves)
    baseline_SN = _scores(baseline)
    seeds = len(curves)
    evaluations = scores_SN.shape[1]
    episodes_N = np.array([point.episodes for point in curves[0][:evaluations]])
    mean_N = baseline_SN.mean(0)
    if higher_is_better is None:
        higher_is_better = bool(mean_N[-1] >= mean_N[0])
    sign = 1 if higher_is_better else -1

    def reached(seeds_S: np.ndarray) -> float:
        level = baseline_SN[seeds_S].mean(0)[-1]
        is_reached_N = sign * scores_SN[seeds_S].mean(0) >= sign * level
        return float(episodes_N[is_reached_N.argmax()]) if is_reached_N.any() else np.inf

    draws = np.random.default_rng(0).integers(seeds, size=(DRAWS, seeds))
    replicates = [reached(draw) for draw in draws]
    tail = (1 - LEVEL) / 2
    # an observed value for each bound: the mean of a number and "never" is neither
    low, high = np.quantile(replicates, [tail, 1 - tail], method="inverted_cdf")
    estimate = reached(np.arange(seeds))
    values = [None if value == np.inf else float(value) for value in (estimate, low, high)]
    return Efficiency(*values)


def _scores(curves: Sequence[Sequence[Point]]) -> np.ndarray:
    """scores_SN of N evaluations with S seeds; a run that stopped early is shorter."""
    length = min(map(len, curves))
    return np.array([[point.score for point in curve[:length]] for curve in curves])
