"""How far the annotators of judgements agree, with intervals over prompts.

Spans are compared between every two annotators of a response. The figures do not depend on which of
the two is the reference. A pair of m annotators has the weight 1 / (m - 1), as in Krippendorff's
alpha: every annotator of a response counts once, so that a response that many have judged does not
decide the figure. `fgrlhf feedback agreement` has the figures of the same function, `report`.
"""

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import (
    Callable,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TypeVar

from fgrlhf.base.errors import shorten
from fgrlhf.data.intraclass import consistency
from fgrlhf.data.judgements import (
    JOINED,
    LIKED_ASPECT,
    NO_ERROR,
    RESPONSE,
    STEP_ASPECT,
    JudgedResponse,
    Judgement,
    missing_places,
)
from fgrlhf.data.krippendorff import NOT_SHARED, Units, alpha
from fgrlhf.data.names import Spellings
from fgrlhf.data.span_matching import (
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
from fgrlhf.metrics.clusters import CLUSTER, cluster_of
from fgrlhf.stats import Figure, ratio_interval
from fgrlhf.words import word_starts

T = TypeVar("T", bound=Hashable)

NOT_MARKED = "none"
NO_SHARED_ERRORS = "no two annotators looked for errors in the same response"


@dataclass
class Shared:
    """A response with the judgements of its annotators, by annotator."""

    response: str
    by_annotator: dict[str, list[Judgement]] = field(default_factory=dict)
    prompt: str = ""
    cluster: str | None = None  # what it shares with others, such as a document

    def spans(self, annotator: str) -> list[Judgement]:
        """The errors that an annotator marked. Spans that they like are not errors.

        They are sorted, the longest first, so that no figure depends on the order in which they
        were marked.
        """
        spans = [item for item in self.by_annotator[annotator] if _is_marked_error(item)]
        return sorted(spans, key=_longest_first)

    def missing_information(self, annotator: str) -> Counter[tuple[str, str | None, str]]:
        """What an annotator named as missing: (aspect, label, places)."""
        named: Counter[tuple[str, str | None, str]] = Counter()
        for judgement in self.by_annotator[annotator]:
            if _is_missing_information(judgement):
                named[judgement.aspect, judgement.label, _places(judgement)] += 1
        return named

    def only(self, annotators: Iterable[str]) -> "Shared":
        """The response with the judgements of some of its annotators."""
        chosen = {name: self.by_annotator[name] for name in annotators}
        return replace(self, by_annotator=chosen)


def _is_marked_error(judgement: Judgement) -> bool:
    return judgement.span is not None and judgement.aspect not in (LIKED_ASPECT, STEP_ASPECT)


def _is_missing_information(judgement: Judgement) -> bool:
    """Whether a judgement of the whole text has the places where the missing facts are stated."""
    return judgement.span is None and missing_places(judgement) is not None


def _places(judgement: Judgement) -> str:
    """The places of missing information as text, with lists such as its sentences in order."""
    places = {}
    for key, value in (missing_places(judgement) or {}).items():
        places[key] = sorted(value, key=json.dumps) if isinstance(value, list) else value
    return json.dumps(places, sort_keys=True)


def _longest_first(judgement: Judgement) -> tuple[int, int, str, str, str]:
    start, end = judgement.span or (0, 0)
    label = judgement.label or ""
    return start - end, start, judgement.aspect, label, judgement.severity or ""


def by_response(files: Mapping[str, Sequence[JudgedResponse]]) -> list[Shared]:
    """The responses of all files, with everybody who judged them.

    Responses are the same if their texts, prompts and sources are. An annotator who judged the same
    response in several rows judged several copies of it, such as equal outputs of two systems. The
    nth copy of one annotator is compared with the nth copy of the others. This also holds across
    files, where one name can stand for two people. A judgement without an annotator belongs to its
    file's only annotator, or to the file. Spellings of one name are one annotator (`name_key`).
    With several files, a row without judgements counts too,
    unless its file names several annotators: its annotator found nothing.
    """
    shared: dict[Hashable, list[Shared]] = {}  # the copies of each response
    judged_copies: Counter[Hashable] = Counter()  # by response and annotator
    for row in _judged_rows(files):
        copy = max((judged_copies[row.key, name] for name in row.by_annotator), default=0)
        copies = shared.setdefault(row.key, [])
        if copy == len(copies):
            copies.append(Shared(row.response, prompt=row.prompt, cluster=row.cluster))
        for name, judgements in row.by_annotator.items():
            judged_copies[row.key, name] = copy + 1
            copies[copy].by_annotator.setdefault(name, []).extend(judgements)
    return [entry for copies in shared.values() for entry in copies]


def judged_in_several_files(files: Mapping[str, Sequence[JudgedResponse]]) -> int:
    """How many responses one annotator's name judged in two files or more."""
    files_of: dict[tuple[Hashable, str], set[str]] = {}  # by response and annotator
    for row in _judged_rows(files):
        for name in row.by_annotator:
            files_of.setdefault((row.key, name), set()).add(row.file)
    return len({key for (key, _), names in files_of.items() if len(names) > 1})


# keys of rows, in public data, that name the languages of a translation
LANGUAGE_KEYS = (
    *("langs", "lp", "lang_pair", "language_pair"),
    *("target_lang", "target_language", "tgt_lang"),
)


@dataclass(frozen=True)
class _JudgedRow:
    """A row of a file; rows of the same response have the same key."""

    file: str
    key: Hashable
    prompt: str
    response: str
    by_annotator: Mapping[str, Sequence[Judgement]]
    cluster: str | None


def _judged_rows(files: Mapping[str, Sequence[JudgedResponse]]) -> Iterator[_JudgedRow]:
    spellings = Spellings()
    for file, items in files.items():
        names = {
            spellings.of(judgement.annotator)
            for item in items
            for judgement in item.judgements
            if judgement.annotator is not None
        }
        # the annotator of judgements that do not name one
        default = next(iter(names)) if len(names) == 1 else file
        for item in items:
            # rows of spans have the prompt as their source if an annotator marked something in it
            source = None if item.source == item.prompt.text else item.source
            by_annotator: dict[str, list[Judgement]] = {}
            if not item.judgements and len(files) > 1 and len(names) <= 1:
                by_annotator[default] = []
            for judgement in item.judgements:
                name = spellings.of(judgement.annotator) if judgement.annotator else default
                by_annotator.setdefault(name, []).append(judgement)
            # an output can be the same in two languages
            languages = tuple(str(item.prompt.meta.get(name)) for name in LANGUAGE_KEYS)
            key = (item.prompt.text, source, item.response, languages)
            prompt = item.prompt
            cluster = cluster_of(prompt)
            yield _JudgedRow(file, key, prompt.text, item.response, by_annotator, cluster)


def clusters(shared: Sequence[Shared]) -> list[Hashable]:
    """The cluster of each response: that of its row, else see `clusters_of`."""
    names = clusters_of([entry.prompt for entry in shared])
    for place, entry in enumerate(shared):
        if entry.cluster is not None:
            names[place] = f"{CLUSTER} {entry.cluster}"
    return names


def clusters_of(prompts: Sequence[str]) -> list[Hashable]:
    """The cluster of each of the responses to these prompts: its prompt.

    Responses to one prompt are similar. Responses without a prompt are clusters of their own, and
    so are all if there is one prompt.
    """
    is_one = len(set(prompts)) == 1
    names: list[Hashable] = []
    for place, prompt in enumerate(prompts):
        names.append(prompt if prompt.strip() and not is_one else place)
    return names


def not_judging_errors(files: Mapping[str, Sequence[JudgedResponse]]) -> int:
    """How many annotators of a response the figures of errors leave out, over all responses."""
    shared = by_response(files)
    left_out = 0
    for entry, judged in zip(shared, _with_judged_errors(shared), strict=True):
        left_out += len(entry.by_annotator) - len(judged.by_annotator)
    return left_out


def _with_judged_errors(shared: Sequence[Shared]) -> list[Shared]:
    """The responses with those of their annotators who looked for errors.

    Annotators who only rated a response, or gave it a verdict of another aspect, may never have
    looked for errors in it. Annotators looked for errors if

    - they marked one as a span,
    - they judged the whole response in an aspect that has spans: an error without a place,
    - they found none: their judgement is `no error`, or they have a row without judgements.

    If nobody marked a span, all annotators count.
    """
    aspects = set()
    for entry in shared:
        for judgements in entry.by_annotator.values():
            aspects |= {item.aspect for item in judgements if _is_marked_error(item)}
    judged = []
    for entry in shared:
        names = []
        for name, judgements in entry.by_annotator.items():
            if not judgements or not aspects or judges_errors(judgements, aspects):
                names.append(name)
        judged.append(entry.only(names))
    return judged


def judges_errors(judgements: Iterable[Judgement], aspects: Container[str]) -> bool:
    """Whether an annotator with these judgements looked for errors; see `_with_judged_errors`.

    Args:
      aspects: those that have marked spans anywhere in the files.
    """
    return any(item.aspect in aspects or item.label == NO_ERROR for item in judgements)


def _with_named_information(
    shared: Sequence[Shared], with_errors: Sequence[Shared]
) -> list[Shared]:
    """The responses with those of their annotators who looked for missing information.

    They named some, or looked for errors, which annotators do at the same time.
    """
    judged = []
    for entry, errors in zip(shared, with_errors, strict=True):
        names = []
        for name in entry.by_annotator:
            if name in errors.by_annotator or entry.missing_information(name):
                names.append(name)
        judged.append(entry.only(names))
    return judged


def report(
    files: Mapping[str, Sequence[JudgedResponse]],
    severities: Sequence[str] = (),
    orders: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Figure]:
    """All figures, by name.

    Args:
      files: name -> its judged responses.
      severities: from the mildest to the worst, for the agreement on severities.
      orders: aspect -> the labels of its verdicts, from the lowest to the highest.
    """
    shared = by_response(files)
    errors = _with_judged_errors(shared)
    figures: dict[str, Figure] = {}
    scored = _score_aspects(shared)
    verdicts = _verdict_aspects(shared)
    steps = any(_steps(entry, lambda item: item.aspect) for entry in shared)
    if _looked_for_errors(shared) or not (scored or verdicts or steps):
        figures |= _error_figures(shared, errors, severities)
    if _has_missing_information(shared):
        figures["missing information F1"] = _missing_figure(_with_named_information(shared, errors))
    for aspect in verdicts:
        units = [_verdict_unit(entry, aspect) for entry in shared]
        name = f"alpha, verdicts of {aspect}"
        figures[name] = alpha(units, clusters=clusters(shared))
        if orders and aspect in orders:
            how = f"orders={{{aspect}: [...]}}"
            figures[f"{name} (ordinal)"] = _ordinal(shared, units, orders[aspect], how)
    for aspect in scored:
        scores = [_scores(entry, aspect) for entry in shared]
        figures |= _score_figures(shared, aspect, [[of_response] for of_response in scores])
    steps = [_steps(entry, lambda item: item.label) for entry in shared]
    if any(steps):
        figures["alpha, labels of steps"] = alpha(_units(steps), clusters=clusters(shared))
    steps = [_steps(entry, lambda item: item.score) for entry in shared]
    if any(steps):
        figures |= _score_figures(shared, "steps", steps)
    return figures


def _error_figures(
    shared: Sequence[Shared], errors: Sequence[Shared], severities: Sequence[str]
) -> dict[str, Figure]:
    """The figures about marked errors.

    Args:
      errors: the responses with those of their annotators who looked for errors.
    """
    is_shared = any(len(entry.by_annotator) > 1 for entry in shared)
    not_shared = NO_SHARED_ERRORS if is_shared else NOT_SHARED
    figures: dict[str, Figure] = {}
    for name, count in (
        ("span F1, exact", exact_matches),
        ("span F1, best match", overlap_matches),
        ("span F, MPP", partial_credit),
    ):
        figures[f"{name}, positions"] = _span_figure(errors, count, any_type, not_shared)
        figures[f"{name}, positions and types"] = _span_figure(errors, count, same_type, not_shared)
    for name, with_types in (("words marked or not", False), ("types of words", True)):
        units = [_word_units(entry, with_types) for entry in errors]
        figures[f"alpha, {name}"] = alpha(units, nothing=not_shared, clusters=clusters(errors))
    figures["alpha, types of matched spans"] = alpha(
        [_matched_units(entry, _types) for entry in errors],
        nothing="no two annotators marked overlapping spans",
        clusters=clusters(errors),
    )
    if _has_severities(errors):
        name = "alpha, severities of matched spans (ordinal)"
        figures[name] = _severity_figure(errors, severities)
    return figures


def _looked_for_errors(shared: Sequence[Shared]) -> bool:
    """Whether anybody marked an error, or found none."""
    for entry in shared:
        for judgements in entry.by_annotator.values():
            is_error = any(item.label == NO_ERROR or _is_marked_error(item) for item in judgements)
            if is_error or not judgements:
                return True
    return False


def weight_notes(files: Mapping[str, Sequence[JudgedResponse]]) -> list[str]:
    """Names prompts whose responses have more than half of what a figure is computed from."""
    shared = by_response(files)
    errors = [entry for entry in _with_judged_errors(shared) if len(entry.by_annotator) > 1]
    rated = [entry for entry in shared if len(entry.by_annotator) > 1]

    def marks(entry: Shared) -> int:
        return sum(len(entry.spans(name)) for name in entry.by_annotator)

    def words(entry: Shared) -> int:
        return len(list(word_starts(entry.response))) * len(entry.by_annotator)

    notes = []
    if _looked_for_errors(shared):
        notes += _heaviest(errors, marks, "marks", "the F figures of spans")
        notes += _heaviest(errors, words, "labels of words", "the alphas of words")
    if _score_aspects(shared) or _verdict_aspects(shared):
        notes += _heaviest(
            rated, lambda entry: len(entry.by_annotator), "judgements", "scores and verdicts"
        )
    return notes


def _heaviest(
    shared: Sequence[Shared], weight: Callable[[Shared], int], what: str, figures: str
) -> list[str]:
    """A note if one of several clusters has more than half of the weight."""
    weights: Counter[Hashable] = Counter()
    texts: dict[Hashable, str] = {}
    for entry, name in zip(shared, clusters(shared)):
        weights[name] += weight(entry)
        texts.setdefault(name, name if isinstance(name, str) else entry.response)
    total = weights.total()
    for name, heaviest in weights.most_common(1):
        if len(weights) > 1 and 2 * heaviest > total:
            return [
                f"{heaviest:,} of the {total:,} {what} are of one item,"
                f" {shorten(repr(texts[name]), 60)}: it decides {figures}"
            ]
    return []


def pair_figures(
    files: Mapping[str, Sequence[JudgedResponse]],
) -> dict[frozenset[str], float | None]:
    """`span F1, best match, positions and types` of every two annotators.

    It is over the responses in which both looked for errors; None if neither marked one.
    """
    matched: Counter[frozenset[str]] = Counter()
    total: Counter[frozenset[str]] = Counter()
    pairs = set()
    for entry in _with_judged_errors(by_response(files)):
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


def _missing_figure(shared: Sequence[Shared]) -> Figure:
    """F1 of missing information: the label and the places must be equal."""

    def compare(entry: Shared, annotator: str, other: str) -> tuple[float, int]:
        first = entry.missing_information(annotator)
        second = entry.missing_information(other)
        return 2.0 * (first & second).total(), first.total() + second.total()

    nothing_given = "no annotator of a shared response named missing information"
    return _ratio(shared, compare, nothing_given, NOT_SHARED)


def _ratio(
    shared: Sequence[Shared],
    compare: Callable[[Shared, str, str], tuple[float, int]],
    nothing_given: str,
    not_shared: str,
) -> Figure:
    """The ratio of two sums over the pairs of annotators of each response, weighted 1 / (m - 1).

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
    return ratio_interval(matched, totals, names)


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
    return _ordinal(shared, units, severities, "severities=[...]")


def _ordinal(
    shared: Sequence[Shared], units: Sequence[Units], order: Sequence[str], how: str
) -> Figure:
    """Ordinal alpha of values from the lowest to the highest of `order`.

    Args:
      how: the setting that gives the order.
    """
    used = {str(value) for of_entry in units for unit in of_entry for value in unit}
    missing = sorted(used - set(order))
    if missing:
        return (
            f"undefined: the order of {', '.join(missing)} is not known; give all from the lowest"
            f" to the highest with {how}"
        )
    return alpha(units, order, clusters=clusters(shared), level="ordinal")


def _has_missing_information(shared: Sequence[Shared]) -> bool:
    return any(entry.missing_information(name) for entry in shared for name in entry.by_annotator)


def _is_verdict(judgement: Judgement) -> bool:
    """Whether a judgement labels the whole text. Missing information is a list, and no verdict."""
    if judgement.span is not None or judgement.label is None:
        return False
    return not _is_missing_information(judgement)


def verdict_aspects(files: Mapping[str, Sequence[JudgedResponse]]) -> list[str]:
    """The aspects that have a figure about verdicts."""
    return _verdict_aspects(by_response(files))


def _verdict_aspects(shared: Sequence[Shared]) -> list[str]:
    """The aspects with labels of whole texts, in the order in which they first occur.

    An aspect whose only such label is `no error` is left out: its errors are marked as spans.
    """
    aspects: dict[str, None] = {}  # an ordered set
    for entry in shared:
        for judgements in entry.by_annotator.values():
            for item in judgements:
                if _is_verdict(item) and item.label != NO_ERROR:
                    aspects[item.aspect] = None
    return list(aspects)


def _verdict_unit(entry: Shared, aspect: str) -> Units:
    """The label that each annotator gave the whole text: the first, if there are several."""
    values = []
    for judgements in entry.by_annotator.values():
        labels = [item.label for item in judgements if _is_verdict(item) and item.aspect == aspect]
        if labels:
            values.append(labels[0])
    return [values]


def _is_score(judgement: Judgement) -> bool:
    """Whether a judgement scores the whole text."""
    return judgement.span is None and judgement.score is not None


def _score_aspects(shared: Sequence[Shared]) -> list[str]:
    """The aspects with scores of whole texts, in the order in which they first occur."""
    aspects: dict[str, None] = {}  # an ordered set
    for entry in shared:
        for judgements in entry.by_annotator.values():
            aspects |= {item.aspect: None for item in judgements if _is_score(item)}
    return list(aspects)


def _score_figures(
    shared: Sequence[Shared], of: str, scores: Sequence[Sequence[Mapping[str, float]]]
) -> dict[str, Figure]:
    """How far scores agree: their ranks, their values, and their differences.

    Args:
      scores: for each response and everything in it that is scored, the scores by annotator.
    """
    units = _units(scores)
    used = sorted({score for of_response in units for unit in of_response for score in unit})
    names = clusters(shared)
    single = [one for of_response in scores for one in of_response]
    single_names = [name for name, ones in zip(names, scores) for _ in ones]
    return {
        f"alpha, scores of {of} (ordinal)": alpha(units, used, NOT_SHARED, names, "ordinal"),
        f"alpha, scores of {of} (interval)": alpha(units, (), NOT_SHARED, names, "interval"),
        f"ICC, scores of {of} (consistency)": consistency(single, single_names),
    }


def _units(given: Sequence[Sequence[Mapping[str, T]]]) -> list[list[list[T]]]:
    """The values without their annotators."""
    return [[list(unit.values()) for unit in of_response] for of_response in given]


def _steps(entry: Shared, value: Callable[[Judgement], T | None]) -> list[dict[str, T]]:
    """For each step of a response, the value that each annotator gave it; none without a value."""
    steps: dict[tuple[int, int], dict[str, T]] = {}
    for name, judgements in entry.by_annotator.items():
        for item in judgements:
            given = value(item)
            if item.aspect == STEP_ASPECT and item.span is not None and given is not None:
                steps.setdefault(item.span, {}).setdefault(name, given)
    return [steps[place] for place in sorted(steps)]


def _scores(entry: Shared, aspect: str) -> dict[str, float]:
    """The score that each annotator gave the whole text: the first, if there are several."""
    scores: dict[str, float] = {}
    for name, judgements in entry.by_annotator.items():
        for item in judgements:
            if item.score is not None and _is_score(item) and item.aspect == aspect:
                scores.setdefault(name, item.score)
    return scores
