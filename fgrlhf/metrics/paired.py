"""Comparison of two policies' metrics on the same prompts, from their evaluation rows."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from fgrlhf.base.errors import shorten
from fgrlhf.base.shared_messages import print_once
from fgrlhf.metrics.clusters import ClusterOfPrompt, clusters_by_prompt, clusters_of
from fgrlhf.metrics.config import METRICS, RESERVED_COLUMNS
from fgrlhf.metrics.pooled import (
    ANY,
    CORPUS,
    CORPUS_LEVEL,
    ERROR_FREE,
    MAX,
    PROMPT,
    PROMPT_LEVEL,
    RATIO,
    TOKENIZER,
    TOTAL,
    over_samples,
)
from fgrlhf.paired_stats import paired_interval, paired_pooled_interval, paired_ratio_interval
from fgrlhf.stats import Interval

MOST_OWN = 5  # metrics of a task that are compared without being headline metrics
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


def paired_difference(
    a: Mapping[str, float], b: Mapping[str, float], names: ClusterOfPrompt | None = None
) -> Interval | None:
    """The mean of a - b over the prompts in both, with an interval; None if there are none.

    Args:
      names: the clusters of prompts, if they have some.
    """
    shared = [prompt for prompt in a if prompt in b]
    if not shared:
        return None
    first, second = ([of[prompt] for prompt in shared] for of in (a, b))
    return paired_interval(first, second, clusters_of(shared, names))


def own_metrics(rows: Iterable[Mapping]) -> list[str]:
    """The columns that are no rewards and have no name of the library's metrics, if they are few.

    They are a task's own metrics, which comparisons show by default. Rewards and metrics of the
    library appear only if `Display.headline` names them.

    Args:
      rows: of an evaluation.
    """
    names: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                names[name] = None
    rewards = {name.removeprefix("reward/") for name in names if name.startswith("reward/")}
    others = {*RESERVED_COLUMNS, *METRICS, *rewards}
    own = [name for name in names if name.partition("/")[0] not in others]
    return own if len(own) <= MOST_OWN else []


def paired_gain(a: Sequence[Mapping], b: Sequence[Mapping], metric: str) -> Interval | None:
    """The difference between two policies in a metric, with an interval over shared prompts.

    Args:
      a, b: the policies' evaluation rows.
      metric: a column, or a key of the summary: `<reward>/ratio`, `<metric>/corpus` or
        `<metric>/prompt` (`fgrlhf.metrics.summary.summarize`).

    Returns:
      None if no prompt has the metric in both; if it is a ratio and one of them has no segment; or
      if it depends on the number of responses to a prompt and the policies have different numbers;
      or if other tokenizers found the words, which a note says once.
    """
    if _have_other_tokenizers(a, b, metric.removesuffix(CORPUS)):
        return None
    name = metric.removesuffix(PROMPT)
    clusters = clusters_by_prompt([*a, *b])
    is_together = name in PROMPT_LEVEL and name != metric
    depends_on_samples = is_together or metric.endswith((f"/{MAX}", f"/{ANY}"))
    if depends_on_samples and _samples(a) != _samples(b):
        return None
    if metric.endswith(RATIO):
        reward = metric.removesuffix(RATIO)
        if any(reward + ERROR_FREE in row for row in a):  # else it is a column of its own
            return _ratio_gain(a, b, reward, clusters)
    if metric.endswith(CORPUS):
        for statistic in CORPUS_LEVEL:
            column = f"{metric.removesuffix(CORPUS)}/{statistic}"
            if any(column in row for row in a):
                return _corpus_gain(a, b, column, CORPUS_LEVEL[statistic], clusters)
    if is_together:
        return paired_difference(_together(a, name), _together(b, name), clusters)
    return paired_difference(by_prompt(a, metric), by_prompt(b, metric), clusters)


def _have_other_tokenizers(a: Iterable[Mapping], b: Iterable[Mapping], metric: str) -> bool:
    """Whether a prompt that both have was scored with another tokenizer in each."""
    column = metric + TOKENIZER
    of_a = {row["id"]: row[column] for row in a if column in row}
    for row in b:
        names = of_a.get(row["id"]), row.get(column)
        if None not in names and names[0] != names[1]:
            print_once(
                f"note: {metric} is not compared: its words were found with the tokenizer"
                f" {shorten(names[0], 40)} in one evaluation and {shorten(names[1], 40)} in the"
                " other. Evaluate both with the same `tokenizer` of the metric"
            )
            return True
    return False


def _samples(rows: Iterable[Mapping]) -> int:
    """The number of responses to a prompt; the largest one if prompts differ."""
    return max(Counter(row["id"] for row in rows).values(), default=0)


def _ratio_gain(
    a: Sequence[Mapping], b: Sequence[Mapping], reward: str, names: ClusterOfPrompt | None
) -> Interval | None:
    of_a, of_b = _segment_counts(a, reward), _segment_counts(b, reward)
    shared = [prompt for prompt in of_a if prompt in of_b]
    if not all(any(counts[prompt][1] for prompt in shared) for counts in (of_a, of_b)):
        return None  # a policy without any segment has no ratio
    clusters = clusters_of(shared, names)
    return paired_ratio_interval(_columns(of_a, shared), _columns(of_b, shared), clusters)


def _corpus_gain(
    a: Sequence[Mapping],
    b: Sequence[Mapping],
    column: str,
    statistic: Callable[[Sequence[float]], float],
    names: ClusterOfPrompt | None,
) -> Interval | None:
    of_a, of_b = _summed_lists(a, column), _summed_lists(b, column)
    shared = [prompt for prompt in of_a if prompt in of_b]
    if not shared:
        return None
    first, second = ([of[prompt] for prompt in shared] for of in (of_a, of_b))
    return paired_pooled_interval(first, second, statistic, clusters_of(shared, names))


def _summed_lists(rows: Iterable[Mapping], column: str) -> dict[str, list[float]]:
    """The lists of numbers in a column, summed over the responses to each prompt."""
    lists: dict[str, list[Sequence[float]]] = {}
    for row in rows:
        if column in row:
            lists.setdefault(row["id"], []).append(row[column])
    return {prompt: [sum(same) for same in zip(*values)] for prompt, values in lists.items()}


def _together(rows: Iterable[Mapping], metric: str) -> dict[str, float]:
    """The metric of all responses to a prompt together; {} if no prompt has several.

    Prompts to whose responses the metric does not apply are left out.
    """
    texts: dict[str, list[str]] = {}
    for row in rows:
        if metric in row:
            texts.setdefault(row["id"], []).append(row["response"])
    if all(len(responses) == 1 for responses in texts.values()):
        return {}
    values = {}
    for prompt, responses in texts.items():
        value = PROMPT_LEVEL[metric](responses)
        if value is not None:
            values[prompt] = value
    return values


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
