"""Comparison of two policies' metrics on the same prompts, from their evaluation rows."""

from collections.abc import Iterable, Mapping

from fgrlhf.metrics.pooled import over_samples
from fgrlhf.stats import Interval, paired_bootstrap


def by_prompt(rows: Iterable[Mapping], metric: str) -> dict[str, float]:
    """A metric of each prompt, by its id: the mean over its responses, or what `over_samples` says.

    Responses without the metric, or to which it does not apply (None), are left out.
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.get(metric) is not None:
            values.setdefault(row["id"], []).append(row[metric])
    return {prompt: over_samples(metric, samples) for prompt, samples in values.items()}


def paired_difference(a: Mapping[str, float], b: Mapping[str, float]) -> Interval | None:
    """The mean of a - b over the prompts in both, with an interval; None if there are none."""
    shared = [prompt for prompt in a if prompt in b]
    if not shared:
        return None
    return paired_bootstrap([a[prompt] for prompt in shared], [b[prompt] for prompt in shared])
