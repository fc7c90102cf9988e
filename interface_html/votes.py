"""Which of several judgements of an item count: the first, the last, or what most people chose."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Literal

from interface_html.decisions import JUDGEMENT_KEYS, Key, decided_by, with_decided
from interface_html.format import RATINGS, Item
from interface_html.ratings import median_ratings
from interface_html.rules import (
    Document,
    errors_only,
    find_cycle,
    missing_labels,
    pairs_in_circles,
    text_labels,
)
from interface_html.schema import PageName, Schema
from interface_html.stored import Submission
from interface_html.weighting import NO_WEIGHTS, Weights

Policy = Literal["first", "latest", "majority", "adjudicated", "all"]
VOTES = ("majority", "adjudicated")  # policies that count votes
Labels = Sequence[Hashable]  # of the parts of an annotation


def judged_items(
    schema: Schema,
    items: Sequence[Item],
    submissions: Sequence[Submission],
    policy: Policy,
    pages: Sequence[PageName],
    weights: Weights = NO_WEIGHTS,
    adjudicated: Collection[Key] = (),
) -> tuple[list[Item], int]:
    """Items with the feedback to export, in their order, and the number of items left out.

    An item is left out if it lacks a judgement of one of `pages`. Judgements that came with an item
    count if there are no submissions for it.

    Args:
      schema: the task's schema.
      items: all items of the study.
      submissions: sorted by time.
      policy: `first` or `latest`: one annotation, comparison and rating of each item, by time.
        `majority`: for each pair the value that most annotators chose (a tie if no value leads;
        see `majority_preference`), the annotation that agrees best with the others, and the median
        of each rating. An annotation stays whole, as its marks, its evidence and its correction
        belong together; `fgrlhf/data/votes.py` votes on the characters of judgements instead.
        `adjudicated`: as `majority`; the caller has put decisions in place of the votes
        (`with_decisions`). `all`: the item once for each annotator. Of several submissions of an
        annotator the latest counts, with `first` the first.
      pages: the judgements that a row needs. It has those of other pages too, if there are any.
      weights: of the annotators' votes, for `majority`.
      adjudicated: the items and pages whose submission is an adjudicator's.

    Returns:
      The items, whose rows have `decided` (decisions.py), and the number of items left out.
    """
    annotations = _documents(submissions, "annotation", policy)
    comparisons = _documents(submissions, "comparison", policy)
    ratings = _documents(submissions, "rating", policy)
    judged: list[Item] = []
    left_out = 0
    for item in items:
        of_item = annotations.get(item.id, {}), comparisons.get(item.id, {})
        rated = ratings.get(item.id, {})
        if policy == "all":
            versions = _one_per_annotator(item, *of_item, rated)
        else:
            versions = [_chosen(schema, item, *of_item, rated, policy, weights)]
        decided = {}
        for page, documents in zip(JUDGEMENT_KEYS, (*of_item, rated), strict=True):
            is_adjudicated = (item.id, page) in adjudicated
            if documents:
                values = list(documents.values())
                decided[page] = decided_by(schema, page, values, policy, is_adjudicated)
        complete = [version for version in versions if _is_complete(version, pages)]
        judged += [with_decided(schema, version, decided) for version in complete]
        if not complete:
            left_out += 1
    return judged, left_out


def _documents(
    submissions: Sequence[Submission], page: PageName, policy: Policy
) -> dict[str, dict[str, Document]]:
    """The document that counts, by item and annotator."""
    documents: dict[str, dict[str, Document]] = {}
    for submission in submissions:
        if submission.page != page:
            continue
        by_annotator = documents.setdefault(submission.item, {})
        if policy == "first" and submission.annotator in by_annotator:
            continue
        if policy == "latest":  # the dict's last entry must be the latest submission
            by_annotator.pop(submission.annotator, None)
        by_annotator[submission.annotator] = submission.doc
    return documents


def _with_feedback(
    item: Item, annotation: Document | None, comparison: Document | None, rating: Document | None
) -> Item:
    row = dict(item.row)
    if annotation is not None:
        row["feedback"] = annotation
    if comparison is not None:
        row["preference"] = comparison["preference"]
    if rating is not None:
        row[RATINGS] = rating["ratings"]
    return Item(item.id, row)


def _one_per_annotator(
    item: Item,
    annotations: Mapping[str, Document],
    comparisons: Mapping[str, Document],
    ratings: Mapping[str, Document],
) -> list[Item]:
    names = dict.fromkeys([*annotations, *comparisons, *ratings])
    if not names:
        return [item]
    return [
        _with_feedback(item, annotations.get(name), comparisons.get(name), ratings.get(name))
        for name in names
    ]


def _chosen(
    schema: Schema,
    item: Item,
    annotations: Mapping[str, Document],
    comparisons: Mapping[str, Document],
    ratings: Mapping[str, Document],
    policy: Policy,
    weights: Weights,
) -> Item:
    if policy not in VOTES:
        return _with_feedback(
            item,
            _first_or_latest(annotations, policy),
            _first_or_latest(comparisons, policy),
            _first_or_latest(ratings, policy),
        )
    return _with_feedback(
        item,
        _most_agreed_annotation(schema, item, annotations, weights),
        _voted_preference(schema, comparisons, weights),
        _median_rating(schema, ratings),
    )


def _first_or_latest(documents: Mapping[str, Document], policy: Policy) -> Document | None:
    if not documents:
        return None
    return list(documents.values())[0 if policy == "first" else -1]


def _most_agreed_annotation(
    schema: Schema, item: Item, annotations: Mapping[str, Document], weights: Weights
) -> Document | None:
    if not annotations:
        return None
    documents = list(annotations.values())
    labels = [text_labels(schema, item.row, errors_only(schema, doc)) for doc in documents]
    missing = missing_labels(schema, documents)
    return documents[most_agreed_labels(labels, weights.of("annotation", annotations), missing)]


def _voted_preference(
    schema: Schema, comparisons: Mapping[str, Document], weights: Weights
) -> Document | None:
    if not comparisons:
        return None
    preferences = [doc["preference"] for doc in comparisons.values()]
    of_annotators = weights.of("comparison", comparisons)
    return {"preference": majority_preference(schema, preferences, of_annotators)}


def count_circles(
    schema: Schema, items: Sequence[Item], submissions: Sequence[Submission], weights: Weights
) -> int:
    """The number of items for which the `majority` of the pairs goes in a circle."""
    comparisons = _documents(submissions, "comparison", "majority")
    circles = 0
    for item in items:
        of_item = comparisons.get(item.id, {})
        preferences = [doc["preference"] for doc in of_item.values()]
        values = majority(preferences, weights.of("comparison", of_item))
        circles += find_cycle(len(schema.fields.outputs), schema.pairs, values) is not None
    return circles


def _median_rating(schema: Schema, ratings: Mapping[str, Document]) -> Document | None:
    if not ratings:
        return None
    return {"ratings": median_ratings(schema, [doc["ratings"] for doc in ratings.values()])}


def _is_complete(item: Item, pages: Sequence[PageName]) -> bool:
    judgements = {
        "annotation": item.feedback,
        "comparison": item.preference,
        "rating": item.ratings,
    }
    return all(judgements[page] is not None for page in pages)


def majority(
    preferences: Sequence[Sequence[int]], weights: Sequence[float] | None = None
) -> list[int]:
    """For each pair, the value with the most votes; 0 (a tie) if no value leads.

    Args:
      preferences: the values of all pairs, of each annotator.
      weights: of the annotators' votes; without them, each counts 1.
    """
    return [value for value, _ in _votes_by_pair(preferences, weights)]


def majority_preference(
    schema: Schema,
    preferences: Sequence[Sequence[int]],
    weights: Sequence[float] | None = None,
) -> list[int]:
    """The `majority` without circles.

    The majorities of pairs can contradict each other, as in 1 > 2 > 3 > 1, even if no annotator
    does. Of the pairs that are part of a circle, those with the smallest lead become ties, until no
    circle is left. The order of the outputs makes no difference.

    Args:
      schema: the task's schema.
      preferences, weights: as in `majority`.
    """
    count = len(schema.fields.outputs)
    votes = _votes_by_pair(preferences, weights)
    values = [value for value, _ in votes]
    while circular := pairs_in_circles(count, schema.pairs, values):
        smallest = min(votes[pair][1] for pair in circular)
        for pair in circular:
            if votes[pair][1] == smallest:
                values[pair] = 0
    return values


def _votes_by_pair(
    preferences: Sequence[Sequence[int]], weights: Sequence[float] | None
) -> list[tuple[int, Fraction]]:
    """For each pair the value with the most votes, and its lead before the next value."""
    votes = _exact(weights, len(preferences))
    winners = []
    for values in zip(*preferences):
        totals = dict.fromkeys((0, 1, 2), Fraction(0))
        for value, vote in zip(values, votes, strict=True):
            totals[value] += vote
        first, second, _ = sorted(totals, key=lambda value: -totals[value])
        lead = totals[first] - totals[second]
        winners.append((first if lead else 0, lead))
    return winners


def most_agreed_labels(
    labels: Sequence[Labels],
    weights: Sequence[float] | None = None,
    missing: Sequence[Labels] | None = None,
) -> int:
    """The index of the annotation whose marks agree most with all votes.

    Of equals, it is the one whose missing information agrees most (`missing_labels`), and of those
    the first. Each annotation, also the chosen one, counts with the weight of its annotator;
    without `weights`, each counts 1.

    Args:
      labels: for each annotation, the label of each character; None where nothing is marked.
    """
    votes = _exact(weights, len(labels))

    def agreement(index: int, kind: Sequence[Labels]) -> Fraction:
        total = Fraction(0)
        for others, vote in zip(kind, votes, strict=True):
            total += vote * sum(label == other for label, other in zip(kind[index], others))
        return total

    kinds = [labels] if missing is None else [labels, missing]
    return max(range(len(labels)), key=lambda index: [agreement(index, kind) for kind in kinds])


def _exact(weights: Sequence[float] | None, count: int) -> list[Fraction]:
    """Weights as fractions, so that rounding never decides between equals.

    If all are 0, nobody is known to be better than chance, and each counts 1.
    """
    if weights is None or not any(weights):
        return [Fraction(1)] * count
    return [Fraction(weight) for weight in weights]
