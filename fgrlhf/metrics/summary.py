"""The statistics of an evaluation's rows."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress

import numpy as np

from fgrlhf.metrics.clusters import CLUSTER, clusters_by_prompt, clusters_of
from fgrlhf.metrics.pooled import (
    CORPUS,
    CORPUS_LEVEL,
    CORPUS_LIMITS,
    ERROR_FREE,
    NOT_APPLICABLE,
    PROMPT,
    PROMPT_LEVEL,
    RATIO,
    TOTAL,
    over_samples,
)
from fgrlhf.stats import (
    Clusters,
    Interval,
    mean_interval,
    pooled_interval,
    ratio_interval,
    share_of_prompts,
)

# Columns that are no shares, even if only the values 0 and 1 occur.
WITHOUT_LIMITS = ("kl", "length", "reward")


def summarize(rows: Sequence[Mapping]) -> dict[str, Interval]:
    """Statistics of an evaluation's rows, with 95% intervals over prompts.

    If rows have the column `cluster`, the intervals are over clusters of prompts.

    Rows with the same id belong to the same prompt. The mean of a column of numbers is taken over
    the responses to a prompt, then over prompts. Further statistics are

    - `<reward>/ratio`: error-free segments / segments, both summed over all responses, instead of
      the means of the columns `<reward>/error_free` and `<reward>/segments`;
    - `<metric>/corpus`: the corpus-level value, from counts summed over all responses;
    - `<column>/max`, `<column>/any`: the maximum over the responses to a prompt, averaged over
      prompts;
    - `<metric>/prompt`: the value for all responses to a prompt together, averaged over prompts, if
      prompts have several responses;
    - `<column>/not_applicable`: the share of responses for which the column is None. They are
      excluded from the other statistics of that column.
    """
    by_prompt: dict[str, list[Mapping]] = {}
    for row in rows:
        by_prompt.setdefault(row["id"], []).append(row)
    groups = list(by_prompt.values())
    clusters = clusters_of(by_prompt, clusters_by_prompt(rows))
    has_several_responses = any(len(group) > 1 for group in groups)
    summary: dict[str, Interval] = {}
    names = _column_names(rows)
    for name in names:
        # the values of each prompt's responses
        column = [[row[name] for row in group if name in row] for group in groups]
        metric, _, statistic = name.rpartition("/")
        # a task's own metric may have the name of only one of the two counts
        has_both_counts = metric + TOTAL in names and metric + ERROR_FREE in names
        if has_both_counts and name == metric + TOTAL and _has_numbers(column):
            error_free = _sums(groups, metric + ERROR_FREE)
            segments = _sums(groups, metric + TOTAL)
            summary[metric + RATIO] = ratio_interval(error_free, segments, clusters)
        elif has_both_counts and name == metric + ERROR_FREE:
            continue  # it is in the ratio
        elif statistic in CORPUS_LEVEL:
            counts = [np.sum(values, axis=0) for values in column if values]
            summary[metric + CORPUS] = pooled_interval(
                counts,
                CORPUS_LEVEL[statistic],
                _chosen(clusters, map(bool, column)),
                CORPUS_LIMITS.get(statistic),
            )
        else:
            summary |= _mean_of_column(name, column, clusters)
            if name in PROMPT_LEVEL and has_several_responses:
                summary |= _prompt_level(name, groups, clusters)
    return summary


def _chosen(clusters: Clusters, is_chosen: Iterable[bool]) -> Clusters:
    """The clusters of the prompts that a statistic has a value of."""
    return None if clusters is None else list(compress(clusters, is_chosen))


def _column_names(rows: Sequence[Mapping]) -> list[str]:
    """The columns of all rows with values, in the order of their first occurrence."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    for name in ("id", "sample", CLUSTER):  # they may be numbers
        names.pop(name, None)
    return list(names)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _has_numbers(column: Sequence[Sequence]) -> bool:
    return any(_is_number(value) for values in column for value in values)


def _sums(groups: Sequence[Sequence[Mapping]], name: str) -> list[float]:
    """The sum of a column over each prompt's responses; where it does not apply it counts as 0."""
    return [sum(row.get(name) or 0 for row in group) for group in groups]


def _mean_of_column(
    name: str, column: Sequence[Sequence], clusters: Clusters
) -> dict[str, Interval]:
    """The mean of a column, and the share of its values that are None; {} for other values.

    Args:
      column: the values of each prompt's responses.
      clusters: of each prompt.
    """
    means = []
    missing_shares = []
    numbers_of_prompts = [[value for value in values if _is_number(value)] for values in column]
    with_numbers = _chosen(clusters, map(bool, numbers_of_prompts))
    for values, numbers in zip(column, numbers_of_prompts):
        if numbers:
            means.append(over_samples(name, numbers))
        if values:
            missing_shares.append(float(np.mean([value is None for value in values])))
    statistics = {}
    if means:
        may_be_share = name.partition("/")[0] not in WITHOUT_LIMITS
        is_share = may_be_share and all(
            value in (0, 1) for values in column for value in values if _is_number(value)
        )
        statistics[name] = (
            share_of_prompts(means, with_numbers)
            if is_share
            else mean_interval(means, with_numbers, may_be_share)
        )
    if any(missing_shares):
        statistics[name + NOT_APPLICABLE] = share_of_prompts(
            missing_shares, _chosen(clusters, map(bool, column))
        )
    return statistics


def _prompt_level(
    name: str, groups: Sequence[Sequence[Mapping]], clusters: Clusters
) -> dict[str, Interval]:
    """The metric for all responses to a prompt together, averaged over prompts."""
    together = [PROMPT_LEVEL[name]([row["response"] for row in group]) for group in groups]
    values = [value for value in together if value is not None]
    chosen = _chosen(clusters, [value is not None for value in together])
    return {name + PROMPT: mean_interval(values, chosen)} if values else {}
