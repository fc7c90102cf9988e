"""Columns of an evaluation: the last parts of their names, and statistics that are not means."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from fgrlhf.metrics.overlap import corpus_bleu, corpus_chrf, corpus_ter
from fgrlhf.words import distinct

# The last parts of the names of columns, in rows of an evaluation and in its summary:
CORPUS = "/corpus"  # of a summary: the value of all responses together
PROMPT = "/prompt"  # of a summary: the mean over prompts of the value of their responses together
TOKENIZER = "/tokenizer"  # `<metric>/tokenizer` of a row: the name of what finds the words

# A reward that classifies segments has two counts in a row, `<reward>/error_free` and
# `<reward>/segments`. Their ratio over all responses is `<reward>/ratio` in the summary.
ERROR_FREE = "/error_free"
TOTAL = "/segments"
RATIO = "/ratio"

# `<column>/not_applicable` in the summary: the share of responses for which a column is None
NOT_APPLICABLE = "/not_applicable"

# The last part of a column's name -> how its values are reduced over the responses to a prompt.
MAX = "max"
ANY = "any"


def corpus_perplexity(nll_and_tokens: Sequence[float]) -> float:
    """exp(-sum over all tokens of log p / number of tokens), from those two sums."""
    negative_log_likelihood, tokens = nll_and_tokens
    return math.exp(negative_log_likelihood / tokens)


# `<statistic>` of a row's key `<metric>/<statistic>`, which holds a list of numbers -> a function
# of their sum over responses, which is `<metric>/corpus` in the summary.
CORPUS_LEVEL: dict[str, Callable[[Sequence[float]], float]] = {
    "bleu_counts": corpus_bleu,
    "chrf_counts": corpus_chrf,
    "ter_counts": corpus_ter,
    "nll_and_tokens": corpus_perplexity,
}
# `<statistic>` -> the least and the greatest value of those that have both
CORPUS_LIMITS = {"bleu_counts": (0.0, 100.0), "chrf_counts": (0.0, 100.0)}

# Metrics that are also computed from all responses to a prompt together: `<metric>/prompt` in the
# summary.
PROMPT_LEVEL: dict[str, Callable[[Sequence[str]], float | None]] = {
    "distinct1": partial(distinct, n=1),
    "distinct2": partial(distinct, n=2),
    "distinct3": partial(distinct, n=3),
}

# Last parts of `reward/...` with a meaning of their own in logs and summaries, so that a reward
# cannot have them as its name.
NOT_REWARDS = frozenset(
    {
        "total",
        "penalized",
        ERROR_FREE.removeprefix("/"),
        TOTAL.removeprefix("/"),
        MAX,
        ANY,
        *CORPUS_LEVEL,
    }
)


def over_samples(column: str, values: Sequence[float]) -> float:
    """One number per prompt from a column's values for the responses to it.

    The mean; the maximum for columns whose name ends in `/max` or `/any`.
    """
    if column.rpartition("/")[2] in (MAX, ANY):
        return float(max(values))
    return sum(values) / len(values)
