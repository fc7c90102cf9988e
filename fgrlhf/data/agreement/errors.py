"""How far annotators agree on errors: their places, types and severities, and what is missing.

Spans are compared between every two annotators of a response, so that the figures do not depend on
which of the two is the reference. A pair of m annotators has the weight 1 / (m - 1), as in
Krippendorff's alpha: every annotator of a response counts once, so that a response that many have
judged does not decide the figure.

    span F1 = 2 m / (|A| + |B|)

is the F-measure of two annotators with the spans A and B, summed over pairs and responses. Hripcsak
& Rothschild (2005), Agreement, the F-Measure, and Reliability in Information Retrieval, JAMIA 12,
296-298. The m pairs of spans are a one-to-one matching with as many pairs as possible. If a span
could match any number of others, two annotators would agree completely of whom one marks a whole
text and the other each wrong word in it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import combinations

from fgrlhf.data.agreement.alpha import NOT_SHARED, Units, alpha
from fgrlhf.data.agreement.matching import (
    SameType,
    Spans,
    any_type,
    best_matches,
    exact_matches,
    f_score,
    overlap_matches,
    partial_credit,
    same_type,
)
from fgrlhf.data.agreement.responses import Shared, clusters, with_judged_errors
from fgrlhf.data.judgements import JOINED, RESPONSE, Judgement
from fgrlhf.stats import Figure, f1_interval
from fgrlhf.words import word_starts

SPAN_F1 = "span F1, one-to-one overlap"
TYPED_SPAN_F1 = f"{SPAN_F1}, positions and types"

NOT_MARKED = "none"
NO_SHARED_ERRORS = "no two annotators looked for errors in the same response"
NO_SHARED_WORDS = "no response in which two annotators looked for errors has words"


def why_unshared(shared: Sequence[Shared], reason: str) -> str:
    """Why a figure has no values of two annotators: `reason`, if a response has two annotators."""
    return reason if any(len(entry.by_annotator) > 1 for entry in shared) else NOT_SHARED


def error_figures(
    shared: Sequence[Shared], errors: Sequence[Shared], severities: Sequence[str]
) -> dict[str, Figure]:
    """The figures about marked errors.

    Args:
      errors: the responses with those of their annotators who looked for errors.
    """
    not_shared = why_unshared(shared, NO_SHARED_ERRORS)
    figures: dict[str, Figure] = {}
    for name, count in (
        ("span F1, exact", exact_matches),
        (SPAN_F1, overlap_matches),
        ("span F, MPP", partial_credit),
    ):
        figures[f"{name}, positions"] = _span_figure(errors, count, any_type, not_shared)
        figures[f"{name}, positions and types"] = _span_figure(errors, count, same_type, not_shared)
    for name, with_types in (("words marked or not", False), ("types of words", True)):
        units = [_word_units(entry, with_types) for entry in errors]
        nothing = (
            NO_SHARED_WORDS if any(len(one.by_annotator) > 1 for one in errors) else not_shared
        )
        figures[f"alpha, {name}"] = alpha(units, nothing=nothing, clusters=clusters(errors))
    figures["alpha, types of matched spans"] = alpha(
        [_matched_units(entry, _types) for entry in errors],
        nothing="no two annotators marked overlapping spans",
        clusters=clusters(errors),
    )
    if _has_severities(errors):
        name = "alpha, severities of matched spans (ordinal)"
        figures[name] = _severity_figure(errors, severities)
    return figures


def pair_figures(shared: Sequence[Shared]) -> dict[frozenset[str], float | None]:
    """`TYPED_SPAN_F1` of every two annotators.

    It is over the responses in which both looked for errors; None if neither marked one.
    """
    matched: Counter[frozenset[str]] = Counter()
    total: Counter[frozenset[str]] = Counter()
    pairs = set()
    for entry in with_judged_errors(shared):
        for first, second in combinations(entry.by_annotator, 2):
            pair = frozenset((first, second))
            pairs.add(pair)
            spans, others = entry.spans(first), entry.spans(second)
            matched[pair] += int(overlap_matches(spans, others, same_type))
            total[pair] += len(spans) + len(others)
    return {pair: matched[pair] / total[pair] if total[pair] else None for pair in pairs}


def _span_figure(
    shared: Sequence[Shared],
    count: Callable[[Spans, Spans, SameType], float],
    fits: SameType,
    not_shared: str,
) -> Figure:
    """The ratio of what matches to all spans, over the pairs of annotators of each response."""

    def compare(entry: Shared, annotator: str, other: str) -> tuple[float, int]:
        first = entry.spans(annotator)
        second = entry.spans(other)
        return count(first, second, fits), len(first) + len(second)

    return _ratio(shared, compare, "no annotator of a shared response marked a span", not_shared)


def missing_figure(shared: Sequence[Shared], not_shared: str) -> Figure:
    """F1 of missing information: the label and the places must be equal.

    Args:
      shared: the responses with those of their annotators who looked for missing information.
      not_shared: the reason to give if no response has two annotators.
    """

    def compare(entry: Shared, annotator: str, other: str) -> tuple[float, int]:
        first = entry.missing_information(annotator)
        second = entry.missing_information(other)
        return 2.0 * (first & second).total(), first.total() + second.total()

    nothing_given = "no annotator of a shared response named missing information"
    return _ratio(shared, compare, nothing_given, not_shared)


def _ratio(
    shared: Sequence[Shared],
    compare: Callable[[Shared, str, str], tuple[float, int]],
    nothing_given: str,
    not_shared: str,
) -> Figure:
    """F1: a ratio of two sums over the pairs of annotators of each response, weighted 1 / (m - 1).

    Args:
      compare: of a response and two of its annotators, the number of judgements that match and the
        number of all.
      nothing_given: the reason to give if there are none.
      not_shared: the reason to give if no response has two annotators.
    """
    matched = []
    totals = []
    names = []
    for entry, name in zip(shared, clusters(shared)):
        matched_here = 0.0
        total_here = 0.0
        for annotator, other in combinations(entry.by_annotator, 2):
            matched_of_pair, total_of_pair = compare(entry, annotator, other)
            weight = 1 / (len(entry.by_annotator) - 1)
            matched_here += matched_of_pair * weight
            total_here += total_of_pair * weight
        if total_here:  # a response without a judgement says nothing about the ratio
            matched.append(matched_here)
            totals.append(total_here)
            names.append(name)
    if not any(len(entry.by_annotator) > 1 for entry in shared):
        return f"undefined: {not_shared}"
    if not totals:
        return f"undefined: {nothing_given}"
    return f1_interval(matched, totals, names)


def _word_units(entry: Shared, with_types: bool) -> Units:
    """For each word of the response, the label that every annotator gave it.

    A word has a label if a span covers any of its characters. Of several labels, it is that of the
    shortest span; the labels of equally short ones are one combined label, so that no figure
    depends on their names.
    """
    starts = list(word_starts(entry.response))
    labels_of_annotators = []
    for annotator in entry.by_annotator:
        labels = [NOT_MARKED] * len(starts)
        lengths = [len(entry.response) + 1] * len(starts)  # of the span of each label
        for (side, start, end), judgements in _by_place(entry.spans(annotator)).items():
            if side != RESPONSE:
                continue
            kinds = {f"{item.aspect}/{item.label}" for item in judgements}
            label = "marked"
            for place in words_in(entry.response, starts, start, end):
                if with_types:
                    both = kinds | _kinds(labels[place])
                    label = JOINED.join(sorted(both if lengths[place] == end - start else kinds))
                if end - start <= lengths[place]:
                    labels[place], lengths[place] = label, end - start
        labels_of_annotators.append(labels)
    return [list(labels) for labels in zip(*labels_of_annotators)]


def _kinds(label: str) -> set[str]:
    return set(label.split(JOINED)) - {NOT_MARKED}


def words_in(text: str, starts: Sequence[int], start: int, end: int) -> range:
    """The places in `starts` of the words of which characters [start, end) cover any.

    White space behind a word is no part of it.
    """
    first = max(bisect_right(starts, start) - 1, 0)
    if starts and not text[start : min(end, _end(starts, first, text))].strip():
        first += 1
    return range(first, bisect_left(starts, end))


def _end(starts: Sequence[int], place: int, text: str) -> int:
    return starts[place + 1] if place + 1 < len(starts) else len(text)


def _by_place(spans: Spans) -> dict[tuple[str, int, int], list[Judgement]]:
    """The judgements of each span, the longest span first: one may have several labels."""
    places: dict[tuple[str, int, int], list[Judgement]] = {}
    for item in spans:
        if item.span is not None:
            places.setdefault((item.side, *item.span), []).append(item)
    return places


def _matched_units(entry: Shared, value: Callable[[Sequence[Judgement]], Hashable | None]) -> Units:
    """The values of the spans that annotators marked at overlapping places, a unit for each place.

    Every two annotators' spans are paired by `best_matches`. Pairs with a common span are one unit,
    the best pairs first, as long as no annotator is in a unit twice.

    Args:
      value: of all judgements of one span, since a span may have several labels; None: none.
    """
    spans = {}
    values = {}
    for name in entry.by_annotator:
        of_places = list(_by_place(entry.spans(name)).values())
        spans[name] = [judgements[0] for judgements in of_places]
        values[name] = [value(judgements) for judgements in of_places]
    pairs = []
    for name, other in combinations(entry.by_annotator, 2):
        for i, k in best_matches(spans[name], spans[other], any_type):
            pairs.append((-f_score(spans[name][i], spans[other][k]), (name, i), (other, k)))
    unit_of: dict[tuple[str, int], dict[str, int]] = {}  # span -> its unit, {annotator: span}
    for _, first, second in sorted(pairs, key=lambda pair: pair[0]):
        one = unit_of.setdefault(first, dict([first]))
        two = unit_of.setdefault(second, dict([second]))
        if one is not two and not one.keys() & two.keys():
            one.update(two)
            unit_of.update(dict.fromkeys(two.items(), one))
    units = []
    for unit in {id(unit): unit for unit in unit_of.values()}.values():
        given = [values[name][place] for name, place in unit.items()]
        units.append([one for one in given if one is not None])
    return [unit for unit in units if len(unit) > 1]


def _types(judgements: Sequence[Judgement]) -> str:
    return JOINED.join(sorted({f"{item.aspect}/{item.label}" for item in judgements}))


def _has_severities(shared: Sequence[Shared]) -> bool:
    for entry in shared:
        for name in entry.by_annotator:
            if any(item.severity is not None for item in entry.spans(name)):
                return True
    return False


def _severity_figure(shared: Sequence[Shared], severities: Sequence[str]) -> Figure:
    """Ordinal alpha of the severities of spans that two annotators marked at overlapping places.

    Args:
      severities: from the mildest to the worst.
    """
    order = {severity: rank for rank, severity in enumerate(severities)}

    def worst(judgements: Sequence[Judgement]) -> str | None:
        given = sorted({item.severity for item in judgements if item.severity is not None})
        return max(given, key=lambda severity: order.get(severity, len(order)), default=None)

    units = [_matched_units(entry, worst) for entry in shared]
    if not any(units):
        return "undefined: no two annotators gave severities to overlapping spans"
    return ordinal_alpha(shared, units, severities, "severities=[...]")


def ordinal_alpha(
    shared: Sequence[Shared],
    units: Sequence[Units],
    order: Sequence[str],
    how: str,
    nothing: str = NOT_SHARED,
) -> Figure:
    """Ordinal alpha of values from the lowest to the highest of `order`.

    Args:
      how: the setting that gives the order.
      nothing: the reason to give if no unit has two values.
    """
    used = {str(value) for of_entry in units for unit in of_entry for value in unit}
    missing = sorted(used - set(order))
    if missing:
        return (
            f"undefined: the order of {', '.join(missing)} is not known; give all from the lowest"
            f" to the highest with {how}"
        )
    return alpha(units, order, nothing, clusters(shared), "ordinal")
