"""How far the spans of two annotators, or of a model and an annotator, match."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from fgrlhf.data.judgements import Judgement

Spans = Sequence[Judgement]  # judgements with a span
SameType = Callable[[Judgement, Judgement], bool]


def overlap(first: Judgement, second: Judgement) -> int:
    """The number of characters in both spans."""
    if first.side != second.side or first.span is None or second.span is None:
        return 0
    start = max(first.span[0], second.span[0])
    end = min(first.span[1], second.span[1])
    return max(end - start, 0)


def same_type(first: Judgement, second: Judgement) -> bool:
    """Whether two judgements have the same aspect and label."""
    return (first.aspect, first.label) == (second.aspect, second.label)


def any_type(first: Judgement, second: Judgement) -> bool:
    """For figures that compare positions alone."""
    return True


def exact_matches(first: Spans, second: Spans, fits: SameType) -> float:
    """How many spans of both lists are matched if only equal spans match, one to one."""
    return 2.0 * len(_matching(first, second, fits, _is_equal))


def overlap_matches(first: Spans, second: Spans, fits: SameType) -> float:
    """How many spans of both lists are matched if overlapping spans match, as many as possible."""
    return 2.0 * len(_matching(first, second, fits, _overlaps))


def partial_credit(first: Spans, second: Spans, fits: SameType) -> float:
    """The sum of the `mpp_credits` of both lists.

    Divided by the number of spans in both lists, it is a figure that does not depend on which list
    is the reference.
    """
    return sum(mpp_credits(first, second, fits))


def mpp_credits(first: Spans, second: Spans, fits: SameType) -> tuple[float, float]:
    """The credits of each list by match with partial overlap and partial credit (MPP).

    Spans are matched as in `best_matches`. A matched span a earns o / |a|, where o is its overlap
    with its partner, in characters. The credits of predictions, divided by their number, are the
    precision; those of references are the recall.

    Perrella et al. (2026), Span-Level Machine Translation Meta-Evaluation, arXiv 2603.19921. The
    caller adds up the credits and numbers of all texts: micro-averaging.
    """
    credit_of_first = 0.0
    credit_of_second = 0.0
    for i, k in best_matches(first, second, fits):
        shared = overlap(first[i], second[k])
        credit_of_first += shared / _length(first[i])
        credit_of_second += shared / _length(second[k])
    return credit_of_first, credit_of_second


def best_matches(first: Spans, second: Spans, fits: SameType) -> list[tuple[int, int]]:
    """The one-to-one matching of overlapping spans with the greatest sum of F scores.

    The F score of spans a and b with an overlap of o characters is 2 o / (|a| + |b|).

    Returns:
      pairs of places in both lists.
    """
    return _matching(first, second, fits, f_score)


def _length(judgement: Judgement) -> int:
    start, end = judgement.span or (0, 0)
    return end - start


def _is_equal(first: Judgement, second: Judgement) -> float:
    return float(first.side == second.side and first.span == second.span)


def _overlaps(first: Judgement, second: Judgement) -> float:
    return float(overlap(first, second) > 0)


def f_score(first: Judgement, second: Judgement) -> float:
    """2 o / (|a| + |b|), where o is the overlap of two spans."""
    return 2 * overlap(first, second) / (_length(first) + _length(second))


def _matching(
    first: Spans,
    second: Spans,
    fits: SameType,
    worth: Callable[[Judgement, Judgement], float],
) -> list[tuple[int, int]]:
    """The one-to-one matching with the greatest sum of worths, as pairs of places in both lists.

    Args:
      fits: whether two spans may be matched at all.
      worth: what a pair adds to the sum. Pairs that add nothing are left out.
    """
    if not first or not second:
        return []
    worths = np.zeros((len(first), len(second)))
    for i, judgement in enumerate(first):
        for k, other in enumerate(second):
            if fits(judgement, other):
                worths[i, k] = worth(judgement, other)
    rows, columns = linear_sum_assignment(worths, maximize=True)
    return [(int(i), int(k)) for i, k in zip(rows, columns) if worths[i, k] > 0]
