"""The figures of the agreement report, with intervals over items."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median

from fgrlhf.data import span_rows
from fgrlhf.data.agreement import JOINED, NOT_MARKED, Shared, severity_figure
from fgrlhf.data.krippendorff import Units, alpha
from fgrlhf.stats import Figure, median_interval, ratio_interval
from fgrlhf.words import word_starts
from interface_html.annotation_matches import (
    Document,
    Matches,
    exact_spans,
    labelled_characters,
    missing_sentences,
    overlapping_spans,
)
from interface_html.format import Item
from interface_html.judged import annotation_judgements
from interface_html.judged_items import Judged
from interface_html.ratings import Ratings
from interface_html.rules import character_labels, errors_only, is_weak_order, output_side
from interface_html.schema import PageName, Schema
from interface_html.tasks import FeedbackTask

# Reasons why a figure is undefined.
NOT_SHARED = "no item was judged by two annotators"
NOT_ANNOTATED_TWICE = "no item was annotated by two annotators"
NOT_RATED_TWICE = "no item was rated by two annotators"
NO_ERROR = "no annotator marked an error"
NOTHING_MISSING = "no annotator marked missing information"
NOT_COMPARED = "no item was compared"
ALL_TIES = "every pair is a tie"
ORDER_UNKNOWN = (
    "the order shown is known for no decided pair; with files=..., give their records=..."
)
NO_TIMES = "no times were recorded"


def report(task: FeedbackTask, judged: Sequence[Judged]) -> dict[str, Figure]:
    """All figures, by name."""
    figures: dict[str, Figure] = {}
    if task.schema.annotates:
        figures |= _annotation_figures(task, judged)
    if task.schema.compares:
        compared = [entry for entry in judged if entry.comparisons]
        figures |= _comparison_figures(task.schema, compared)
    figures |= rating_figures(task.schema, [list(entry.ratings.values()) for entry in judged])
    for page in task.schema.pages:
        figures[f"active seconds, {page}"] = _active_seconds(judged, page)
    return figures


def share(parts: Sequence[tuple[float, float]], undefined: str) -> Figure:
    """The ratio sum(parts) / sum(wholes), with an interval over items.

    F1 is such a ratio: 2 matches / all marks.

    Args:
      parts: a (part, whole) pair for each item.
      undefined: the reason to give if all wholes are 0.
    """
    if not sum(whole for _, whole in parts):
        return f"undefined: {undefined}"
    # a draw of items without anything to count would have no share
    parts = [(part, whole) for part, whole in parts if part or whole]
    return ratio_interval([part for part, _ in parts], [whole for _, whole in parts])


def _active_seconds(judged: Sequence[Judged], page: PageName) -> Figure:
    """The median over items of the median active time of an item's annotators on a page."""
    seconds = [median(entry.seconds[page]) for entry in judged if entry.seconds.get(page)]
    if not seconds:
        return f"undefined: {NO_TIMES}"
    return median_interval(seconds)


# ---- annotations ---------------------------------------------------------------------------------


def _annotation_figures(task: FeedbackTask, judged: Sequence[Judged]) -> dict[str, Figure]:
    schema = task.schema
    judged = [_without_liked_spans(schema, entry) for entry in judged]
    is_shared = any(len(entry.annotations) > 1 for entry in judged)

    def f1(compare: Callable[[Item, Document, Document], Matches], nothing_marked: str) -> Figure:
        undefined = nothing_marked if is_shared else NOT_ANNOTATED_TWICE
        return share(_over_annotator_pairs(judged, compare), undefined)

    figures: dict[str, Figure] = {}
    figures["span F1, exact"] = f1(lambda _, a, b: exact_spans(a, b), NO_ERROR)
    figures["span F1, overlap"] = f1(lambda _, a, b: overlapping_spans(a, b), NO_ERROR)
    figures["span F1, characters"] = f1(
        lambda item, a, b: labelled_characters(schema, item, a, b), NO_ERROR
    )
    for name, units in _units_by_name(task, judged).items():
        figures[f"alpha, {name}"] = alpha(units, nothing=NOT_SHARED)
    if schema.severities:
        figures["alpha, severities (ordinal)"] = _severity_figure(schema, judged)
    if schema.missing:
        figures["missing-info F1"] = f1(
            lambda _, a, b: missing_sentences(schema, a, b), NOTHING_MISSING
        )
    return figures


def _without_liked_spans(schema: Schema, entry: Judged) -> Judged:
    """The item with only the errors of its annotations, since liked spans are no errors."""
    annotations = {}
    for annotator, doc in entry.annotations.items():
        annotations[annotator] = errors_only(schema, doc)
    return replace(entry, annotations=annotations)


def _over_annotator_pairs(
    judged: Sequence[Judged], compare: Callable[[Item, Document, Document], Matches]
) -> list[tuple[float, float]]:
    """For each item, the sums of `compare` over the pairs of its m annotators, over m - 1."""
    sums = []
    for entry in judged:
        matches = 0.0
        marks = 0.0
        for first, second in combinations(entry.annotations.values(), 2):
            matches_of_pair, marks_of_pair = compare(entry.item, first, second)
            matches += matches_of_pair / (len(entry.annotations) - 1)
            marks += marks_of_pair / (len(entry.annotations) - 1)
        sums.append((matches, marks))
    return sums


def _severity_figure(schema: Schema, judged: Sequence[Judged]) -> Figure:
    """As `fgrlhf data agreement`, of the errors marked at overlapping places."""
    shared = []
    for entry in judged:
        for index, key in enumerate(schema.marked_outputs):
            by_annotator = {}
            for annotator, doc in entry.annotations.items():
                by_annotator[annotator] = annotation_judgements(
                    schema, span_rows.ROWS, annotator, doc, index
                )
            shared.append(Shared(entry.item.row[key], by_annotator))
    return severity_figure(shared, [severity.name for severity in schema.severities])


def _units_by_name(task: FeedbackTask, judged: Sequence[Judged]) -> dict[str, list[Units]]:
    """For each item, the labels of its words and of the task's segments.

    The keys are "words" and the names that the task's format gives to its kinds of segments.
    """
    units: dict[str, list[Units]] = {"words": []}
    for entry in judged:
        annotations = list(entry.annotations.values())
        words = []
        for index, key in enumerate(task.schema.marked_outputs):
            words += _word_labels(entry.item.row[key], annotations, output_side(index))
        units["words"].append(words)
        segments = task.format.segment_labels(task.schema, entry.item, annotations)
        for name, labels in segments.items():
            units.setdefault(name, []).append(labels)
    return units


def _word_labels(text: str, annotations: Sequence[Document], side: str) -> list[list[str]]:
    """For each word, its label in each annotation: those of its characters, in order of names.

    Args:
      text: an output.
      side: what marks in it have as their side.
    """
    labels_of_annotations = [character_labels(text, doc, side) for doc in annotations]
    starts = list(word_starts(text))
    words = []
    for start, end in zip(starts, [*starts[1:], len(text)]):
        end = start + len(text[start:end].rstrip())
        word = []
        for labels in labels_of_annotations:
            given = {label for label in labels[start:end] if label is not None}
            word.append(JOINED.join(sorted(given)) or NOT_MARKED)
        words.append(word)
    return words


# ---- ratings -------------------------------------------------------------------------------------


def rating_figures(schema: Schema, judged: Sequence[Sequence[Ratings]]) -> dict[str, Figure]:
    """Ordinal alpha of each scale. Each output of an item is a unit.

    Args:
      schema: the task's schema.
      judged: for each item, the ratings of its annotators.
    """
    figures = {}
    for scale in schema.ratings:
        used = set()
        units_of_items = []
        for annotators in judged:
            units = []
            for output in schema.fields.outputs:
                units.append([ratings[output][scale.name] for ratings in annotators])
                used.update(units[-1])
            units_of_items.append(units)
        # ordinal distances depend on used values only, and the matrix of all 101 percents is large
        figures[f"rating alpha, {scale.name}"] = alpha(
            units_of_items, sorted(used), NOT_RATED_TWICE
        )
    return figures


# ---- comparisons ---------------------------------------------------------------------------------


def _comparison_figures(schema: Schema, judged: Sequence[Judged]) -> dict[str, Figure]:
    listed = list(range(len(schema.fields.outputs)))
    shown_first = []
    listed_first = []
    ties = []
    no_rankings = []
    units = []
    for entry in judged:
        comparisons = list(entry.comparisons.values())
        preferences = [comparison.preference for comparison in comparisons]
        # The order listed says nothing about an unknown order shown.
        known = [(one.preference, one.shown) for one in comparisons if one.shown is not None]
        if known:
            shown_first.append(_wins_of_first(schema, known))
        listed_first.append(_wins_of_first(schema, [(one, listed) for one in preferences]))
        ties.append(_ties(schema, preferences))
        no_rankings.append(_not_rankings(schema, preferences))
        units.append(list(zip(*preferences)))  # each pair of outputs is a unit
    no_winner = ALL_TIES if judged else NOT_COMPARED
    has_winner = any(decided for _, decided in listed_first)
    return {
        "preference alpha": alpha(units, nothing=NOT_SHARED),
        "share won by the output shown first": share(
            shown_first, ORDER_UNKNOWN if has_winner else no_winner
        ),
        "share won by the output listed first": share(listed_first, no_winner),
        "ties": share(ties, NOT_COMPARED),
        "no ranking with ties": share(no_rankings, NOT_COMPARED),
    }


def _wins_of_first(
    schema: Schema, ordered: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> tuple[int, int]:
    """The number of decided pairs that the earlier output has won, and of all decided pairs.

    Args:
      schema: the task's schema.
      ordered: the preference of each comparison, and the order of its outputs.
    """
    wins = 0
    decided = 0
    for preference, order in ordered:
        place = {output: k for k, output in enumerate(order)}
        for (i, j), value in zip(schema.pairs, preference):
            if value == 0:
                continue
            decided += 1
            winner, loser = (i, j) if value == 1 else (j, i)
            wins += place[winner] < place[loser]
    return wins, decided


def _ties(schema: Schema, preferences: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The number of pairs that are ties, and of all pairs."""
    ties = sum(preference.count(0) for preference in preferences)
    return ties, len(schema.pairs) * len(preferences)


def _not_rankings(schema: Schema, preferences: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The number of comparisons that contradict themselves (a > b > c > a), and of all."""
    count = len(schema.fields.outputs)
    contradictory = 0
    for preference in preferences:
        if not is_weak_order(count, schema.pairs, preference):
            contradictory += 1
    return contradictory, len(preferences)
