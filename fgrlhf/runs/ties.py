"""Evaluations on dev that cannot tell policies apart."""

from collections.abc import Sequence


def tie_note(metric: str, values: Sequence[float], kept: str) -> str | None:
    """A note if a metric has the same value at all of several evaluations; else None.

    Args:
      metric: its name on dev, which selects the best policy.
      values: one for each evaluation.
      kept: what is kept instead of the best.
    """
    if len(values) < 2 or min(values) < max(values):
        return None
    return (
        f"note: dev {metric} is {values[0]:.4g} at all {len(values)} evaluations, so it does not"
        f" tell them apart: {kept} is kept. Look at other metrics and at the samples"
    )
