"""Comparison of two policies' metrics on the same prompts, from their evaluation rows."""

from collections.abc import Iterable, Mapping, Sequence

from fgrlhf.metrics.pooled import ERROR_FREE, RATIO, TOTAL, over_samples
from fgrlhf.stats import Interval, paired_bootstrap, paired_ratio_bootstrap

Counts = dict[str, tuple[float, float]]  # prompt -> its error-free segments and all its segments


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


def paired_gain(a: Sequence[Mapping], b: Sequence[Mapping], metric: str) -> Interval | None:
    """The difference between two policies in a metric, with an interval over shared prompts.

    Args:
      a, b: the policies' evaluation rows.
      metric: a column, or `<reward>/ratio`: the share of error-free segments among all segments.

    Returns:
      None if no prompt has the metric in both.
    """
    if not metric.endswith(RATIO):
        return paired_difference(by_prompt(a, metric), by_prompt(b, metric))
    reward = metric.removesuffix(RATIO)
    of_a, of_b = _segment_counts(a, reward), _segment_counts(b, reward)
    shared = [prompt for prompt in of_a if prompt in of_b]
    if not shared:
        return None
    return paired_ratio_bootstrap(_columns(of_a, shared), _columns(of_b, shared))


def _segment_counts(rows: Iterable[Mapping], reward: str) -> Counts:
    """The counts of each prompt, summed over its responses."""
    counts: Counts = {}
    for row in rows:
        if row.get(reward + TOTAL) is not None:
            error_free, total = counts.get(row["id"], (0.0, 0.0))
            counts[row["id"]] = (error_free + row[reward + ERROR_FREE], total + row[reward + TOTAL])
    return counts


def _columns(counts: Counts, prompts: Sequence[str]) -> tuple[list[float], list[float]]:
    """Error-free segments and all segments, a number for each prompt."""
    error_free = [counts[prompt][0] for prompt in prompts]
    total = [counts[prompt][1] for prompt in prompts]
    return error_free, total
