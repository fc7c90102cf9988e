"""Sample efficiency: the episodes after which one run reaches the final level of another."""

from collections.abc import Sequence
from dataclasses import dataclass

from fgrlhf.pipeline.experiments import Point


@dataclass(frozen=True)
class Reached:
    """When a run reached a level on dev.

    Attributes:
      level: the score to reach.
      episodes: of the first evaluation at that level or beyond; None if there is none.
      last: episodes of the run's last evaluation.
    """

    level: float
    episodes: float | None
    last: float


def episodes_to_reach(
    curve: Sequence[Point], other: Sequence[Point], higher_is_better: bool
) -> Reached:
    """The episodes of `curve` at which it first reaches the last score of `other`.

    Both curves are scores of the same dev prompts. A single curve is noisy: report several seeds.

    Raises:
      ValueError: a curve has no point.
    """
    if not curve or not other:
        raise ValueError("both curves need at least one evaluation")
    sign = 1 if higher_is_better else -1
    level = other[-1].score
    for point in curve:
        if sign * point.score >= sign * level:
            return Reached(level, point.episodes, curve[-1].episodes)
    return Reached(level, None, curve[-1].episodes)
