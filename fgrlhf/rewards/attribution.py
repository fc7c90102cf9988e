"""What a scorer reads of a response, and how much of its score belongs to each segment.

Every way (`READINGS`) names the texts that are scored, and turns their scores into one number for
each of the J segments. y_S is the response with the segments S only, in their order; each segment
brings what stands before it: white space, or the separator of `step:X`. s is the score:

    segment     s(y_j)
    prefix      s(y_1..j)
    increment   s(y_1..j) - s(y_1..j-1)
    without     s(y) - s(y without j)
    shapley     sum over S without j of |S|! (J - |S| - 1)! / J! (s(y_S and j) - s(y_S))

Increments and Shapley values add up to s(y) - s(empty), and only they do. `without` pays nothing to
either of two segments that say the same, the Shapley value (Shapley 1953) half to each, and the
increment pays the first.

`without` and `shapley` depend on what is written later. Where a decision is credited with the
rewards from its own segment on (everywhere but with `algorithm.credit: response`), it is not
credited with what it changes in those before, so their policy gradient is not that of s
(tests/test_attribution.py).

The Shapley value is exact for up to EXACT segments; for more it is the mean, over 16 orders, of
what a segment adds to those before it in this order (Castro et al. 2009). The orders are two random
ones, begun at four places each, and their reverses. With reverses the effects of pairs are exact.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import factorial

from fgrlhf.reward_utils import Span
from fgrlhf.rewards.kind import Reads

EXACT = 6  # segments: 64 texts
BASES = 2  # random orders for more segments
BEGINNINGS = 4  # places at which each of them begins; with their reverses 16 orders

# of each segment: the score that its label shows, and its part
Parts = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Reading:
    """A way to read a response.

    Args:
      texts: (response, its segments) -> the texts to score. [] without segments.
      parts: (their scores, the number of segments) -> the parts of the segments.
    """

    texts: Callable[[str, Sequence[Span]], list[str]]
    parts: Callable[[Sequence[float], int], Parts]


# ---- texts ---------------------------------------------------------------------------------------


def growing_texts(text: str, ends: Sequence[int]) -> list[str]:
    """The empty text, then `text` up to each end; the last one is the whole text. [] without ends.

    >>> growing_texts("A b. C d. ", [4, 9])
    ['', 'A b.', 'A b. C d. ']
    """
    if not ends:
        return []
    return ["", *(text[:end] for end in ends[:-1]), text]


def with_segments(text: str, spans: Sequence[Span], mask: int) -> str:
    """The response with some segments only, without what stands before the first of them.

    Args:
      mask: the bit 2^j is set if segment j is kept.

    >>> with_segments("A b. C d. E f. ", [(0, 4), (5, 9), (10, 14)], 0b110)
    'C d. E f. '
    """
    begins = [0, *(end for _, end in spans[:-1])]  # of a segment with what stands before it
    ends = [*(end for _, end in spans[:-1]), len(text)]
    kept = [j for j in range(len(spans)) if mask >> j & 1]
    if kept and kept[0]:
        begins[kept[0]] = spans[kept[0]][0]
    return "".join(text[begins[j] : ends[j]] for j in kept)


def _ends(spans: Sequence[Span]) -> list[int]:
    return [end for _, end in spans]


def _coalition_texts(text: str, spans: Sequence[Span]) -> list[str]:
    return [with_segments(text, spans, mask) for mask in coalitions(len(spans))]


def _left_out_texts(text: str, spans: Sequence[Span]) -> list[str]:
    if not spans:
        return []
    every = (1 << len(spans)) - 1
    left = [with_segments(text, spans, every ^ (1 << j)) for j in range(len(spans))]
    return [text, *left]


# ---- Shapley values ------------------------------------------------------------------------------


def orders(count: int) -> list[list[int]]:
    """The orders of the segments for sampled Shapley values; the same for the same number."""
    source = random.Random(count)
    found = []
    for base in range(BASES):
        order = list(range(count))
        source.shuffle(order)
        for i in range(BEGINNINGS):
            begin = (i * BASES + base) * count // (BASES * BEGINNINGS)
            rotated = order[begin:] + order[:begin]
            found += [rotated, rotated[::-1]]
    return found


def _prefixes(order: Sequence[int]) -> list[int]:
    """The masks of the first 0, 1, ..., J segments in this order."""
    masks = [0]
    for j in order:
        masks.append(masks[-1] | 1 << j)
    return masks


def coalitions(count: int) -> list[int]:
    """The masks of the sets of segments that `shapley_values` needs. [] without segments."""
    if count == 0:
        return []
    if count <= EXACT:
        return list(range(1 << count))
    return list(dict.fromkeys(mask for order in orders(count) for mask in _prefixes(order)))


def shapley_values(scores: Mapping[int, float], count: int) -> list[float]:
    """The Shapley value of each segment.

    Args:
      scores: mask -> the score of the response with these segments, for `coalitions(count)`.
    """
    values = [0.0] * count
    if count <= EXACT:
        for mask in range((1 << count) - 1):
            size = mask.bit_count()
            weight = factorial(size) * factorial(count - size - 1) / factorial(count)
            for j in range(count):
                if not mask >> j & 1:
                    values[j] += weight * (scores[mask | 1 << j] - scores[mask])
        return values
    every = orders(count)
    for order in every:
        for j, (before, after) in zip(order, pairwise(_prefixes(order))):
            values[j] += (scores[after] - scores[before]) / len(every)
    return values


# ---- parts ---------------------------------------------------------------------------------------


def _scores(scores: Sequence[float], count: int) -> Parts:
    return [(score, score) for score in scores]


def _increments(scores: Sequence[float], count: int) -> Parts:
    return [(after, after - before) for before, after in pairwise(scores)]


def _losses(scores: Sequence[float], count: int) -> Parts:
    """What the whole loses without each segment."""
    losses = [scores[0] - left for left in scores[1:]]
    return [(loss, loss) for loss in losses]


def _shapley(scores: Sequence[float], count: int) -> Parts:
    values = shapley_values(dict(zip(coalitions(count), scores, strict=True)), count)
    return [(value, value) for value in values]


READINGS: dict[Reads, Reading] = {
    "segment": Reading(lambda text, spans: [text[start:end] for start, end in spans], _scores),
    "prefix": Reading(lambda text, spans: [text[:end] for end in _ends(spans)], _scores),
    "increment": Reading(lambda text, spans: growing_texts(text, _ends(spans)), _increments),
    "without": Reading(_left_out_texts, _losses),
    "shapley": Reading(_coalition_texts, _shapley),
}
