"""The figures of the agreement report, with intervals over prompts.

Those of annotations and ratings are the figures of `fgrlhf data agreement`, of the same function.
"""

from collections.abc import Hashable, Sequence
from statistics import median

from fgrlhf.data import span_rows
from fgrlhf.data.agreement import report as agreement
from fgrlhf.data.agreement.alpha import Units, alpha
from fgrlhf.data.agreement.responses import Shared, by_response, named_clusters
from fgrlhf.data.judgements import SOURCE, JudgedResponse
from fgrlhf.metrics.clusters import CLUSTER
from fgrlhf.stats import Figure, median_interval, ratio_interval
from fgrlhf.text_types import Prompt
from interface_html.judged import output_judgements
from interface_html.judged_items import JudgedItem
from interface_html.rules import is_weak_order
from interface_html.schema import PageName, Schema
from interface_html.tasks import FeedbackTask

# Reasons why a figure is undefined.
NOT_SHARED = "no item was compared by two annotators"
NOT_ANNOTATED = "no item was annotated by two annotators"
NO_SEGMENTS = "no response that two annotators annotated has words"
NOT_COMPARED = "no item was compared"
ALL_TIES = "every pair is a tie"
ORDER_UNKNOWN = (
    "the order shown is known for no decided pair; with files=..., give their records=..."
)
NO_TIMES = "no times were recorded"


def report(task: FeedbackTask, judged: Sequence[JudgedItem]) -> dict[str, Figure]:
    """All figures, by name."""
    schema = task.schema
    figures: dict[str, Figure] = {}
    if schema.annotates or schema.ratings:
        severities = [severity.name for severity in schema.severities]
        figures |= agreement.report(shared_responses(schema, judged), severities)
    if schema.annotates:
        figures |= _segment_figures(task, judged)
    if schema.compares:
        compared = [entry for entry in judged if entry.comparisons]
        figures |= _comparison_figures(schema, compared)
    for page in schema.pages:
        figures[f"active seconds, {page}"] = _active_seconds(judged, page)
    return figures


def shared_responses(schema: Schema, judged: Sequence[JudgedItem]) -> list[Shared]:
    """The responses of a study as a single file."""
    return by_response({"the study": judged_responses(schema, judged)})


def share(
    parts: Sequence[tuple[float, float]],
    undefined: str,
    clusters: Sequence[Hashable] | None = None,
) -> Figure:
    """The ratio sum(parts) / sum(wholes), with an interval over items or clusters of them.

    Args:
      parts: a (part, whole) pair for each item.
      undefined: the reason to give if all wholes are 0.
      clusters: the cluster of each item; None: each is one.
    """
    if not sum(whole for _, whole in parts):
        return f"undefined: {undefined}"
    return ratio_interval([part for part, _ in parts], [whole for _, whole in parts], clusters)


def _active_seconds(judged: Sequence[JudgedItem], page: PageName) -> Figure:
    """The median over items of the median active time of an item's annotators on a page."""
    seconds = [median(entry.seconds[page]) for entry in judged if entry.seconds.get(page)]
    if not seconds:
        return f"undefined: {NO_TIMES}"
    return median_interval(seconds)


# ---- annotations and ratings ---------------------------------------------------------------------


def judged_responses(schema: Schema, judged: Sequence[JudgedItem]) -> list[JudgedResponse]:
    """The annotations and ratings as judgements, for the figures of `fgrlhf data agreement`.

    Each response of an item is one; only the texts that identify it are there.
    """
    responses = []
    for entry in judged:
        for index, key in enumerate(schema.fields.outputs):
            judgements = output_judgements(
                schema, span_rows.ROWS, entry.annotations, entry.ratings, index
            )
            title = entry.item.row[schema.fields.title]
            is_in_source = any(judgement.side == SOURCE for judgement in judgements)
            responses.append(
                JudgedResponse(
                    Prompt(entry.item.id, title, meta={CLUSTER: entry.item.cluster}),
                    entry.item.row[key],
                    tuple(judgements),
                    title if is_in_source else None,
                )
            )
    return responses


def _segment_figures(task: FeedbackTask, judged: Sequence[JudgedItem]) -> dict[str, Figure]:
    """Alpha of the labels of the task's segments, under the names of the task's format."""
    units: dict[str, list[Units]] = {}
    for entry in judged:
        annotations = list(entry.annotations.values())
        segments = task.format.segment_labels(task.schema, entry.item, annotations)
        for name, labels in segments.items():
            units.setdefault(name, []).append(labels)
    names = _clusters(task.schema, judged)
    is_shared = any(len(entry.annotations) > 1 for entry in judged)
    nothing = NO_SEGMENTS if is_shared else NOT_ANNOTATED
    return {f"alpha, {name}": alpha(of, (), nothing, names) for name, of in units.items()}


def _clusters(schema: Schema, judged: Sequence[JudgedItem]) -> list[Hashable]:
    """Of each item, its cluster: that of its row, else items with one title are similar."""
    titles = [entry.item.row[schema.fields.title] for entry in judged]
    return named_clusters(titles, [entry.item.cluster for entry in judged])


# ---- comparisons ---------------------------------------------------------------------------------


def _comparison_figures(schema: Schema, judged: Sequence[JudgedItem]) -> dict[str, Figure]:
    listed = list(range(len(schema.fields.outputs)))
    names = _clusters(schema, judged)
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
        shown_first.append(_wins_of_first(schema, known))
        listed_first.append(_wins_of_first(schema, [(one, listed) for one in preferences]))
        ties.append(_ties(schema, preferences))
        no_rankings.append(_not_rankings(schema, preferences))
        units.append(list(zip(*preferences)))  # each pair of outputs is a unit
    no_winner = ALL_TIES if judged else NOT_COMPARED
    has_winner = any(decided for _, decided in listed_first)
    return {
        "preference alpha": alpha(units, nothing=NOT_SHARED, clusters=names),
        "share won by the output shown first": share(
            shown_first, ORDER_UNKNOWN if has_winner else no_winner, names
        ),
        "share won by the output listed first": share(listed_first, no_winner, names),
        "ties": share(ties, NOT_COMPARED, names),
        "no ranking with ties": share(no_rankings, NOT_COMPARED, names),
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
