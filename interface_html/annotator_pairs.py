"""How many items each annotator has judged, and how far every two annotators agree."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from fgrlhf.data.agreement.errors import SPAN_F1, pair_figures
from interface_html.agreement_figures import shared_responses
from interface_html.judged_items import JudgedItem
from interface_html.schema import Schema


def judged_counts(judged: Sequence[JudgedItem]) -> dict[str, int]:
    """For each annotator, the number of items with a judgement by them."""
    counts: Counter[str] = Counter()
    for entry in judged:
        counts.update({*entry.annotations, *entry.comparisons, *entry.ratings})
    return dict(sorted(counts.items()))


def shared_counts(judged: Sequence[JudgedItem]) -> dict[str, int]:
    """What the agreement is computed from: numbers of items, and of annotator pairs on them."""
    annotated = [len(entry.annotations) for entry in judged]
    compared = [len(entry.comparisons) for entry in judged]
    rated = [len(entry.ratings) for entry in judged]
    counts = {
        "items": len(judged),
        "annotators": len(judged_counts(judged)),
        "items annotated by two or more": _with_two_or_more(annotated),
        "items compared by two or more": _with_two_or_more(compared),
        "annotator pairs on annotated items": _annotator_pairs(annotated),
        "annotator pairs on compared items": _annotator_pairs(compared),
    }
    if any(rated):
        counts["items rated by two or more"] = _with_two_or_more(rated)
        counts["annotator pairs on rated items"] = _annotator_pairs(rated)
    return counts


def _with_two_or_more(annotators_of_items: Sequence[int]) -> int:
    return sum(count > 1 for count in annotators_of_items)


def _annotator_pairs(annotators_of_items: Sequence[int]) -> int:
    return sum(math.comb(count, 2) for count in annotators_of_items)


@dataclass(frozen=True)
class PairAgreement:
    """The agreement of two annotators on the items that both have judged.

    Args:
      first: name of an annotator.
      second: name of another one.
      annotated: the number of items that both have annotated.
      span_f1: `TYPED_SPAN_F1`; None if neither has marked an error.
      compared: the number of items that both have compared.
      same_preference: share of output pairs with the same preference; None without any.
    """

    first: str
    second: str
    annotated: int
    span_f1: float | None
    compared: int
    same_preference: float | None

    def __str__(self) -> str:
        parts = [
            f"{self.annotated} annotated by both, {SPAN_F1}, positions and types"
            f" {_ratio_text(self.span_f1)}",
            f"{self.compared} compared by both, same preference"
            f" {_ratio_text(self.same_preference)}",
        ]
        return f"{self.first} and {self.second}: {'; '.join(parts)}"


def _ratio_text(ratio: float | None) -> str:
    return "undefined" if ratio is None else f"{ratio:.3f}"


def pair_agreements(schema: Schema, judged: Sequence[JudgedItem]) -> list[PairAgreement]:
    """The agreement of every two annotators, also of those without a common item."""
    figures = pair_figures(shared_responses(schema, judged))
    pairs = []
    for first, second in combinations(judged_counts(judged), 2):
        both = {first, second}
        annotated = sum(both <= set(entry.annotations) for entry in judged)
        compared = [entry for entry in judged if both <= set(entry.comparisons)]
        same = 0
        for entry in compared:
            values = entry.comparisons[first].preference
            others = entry.comparisons[second].preference
            same += sum(value == other for value, other in zip(values, others))
        decisions = len(schema.pairs) * len(compared)
        pairs.append(
            PairAgreement(
                first=first,
                second=second,
                annotated=annotated,
                span_f1=figures.get(frozenset(both)),
                compared=len(compared),
                same_preference=same / decisions if decisions else None,
            )
        )
    return pairs
