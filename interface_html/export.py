"""Write the submissions in a server's database as a feedback file in the task's format.

    fgrlhf feedback export NAME db=feedback.sqlite out=train_feedback.json \\
        policy=majority weights=reliability.json

With dev_file=..., a share of the prompts is held out of `out`, by clusters if the items have them.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Literal

from pydantic import Field

from fgrlhf.base.errors import UserError, counted, first_problems
from fgrlhf.base.files import write_text
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import FilePath
from fgrlhf.data.split import held_out
from fgrlhf.metrics.clusters import CLUSTER
from interface_html.checks import left_out_text as checks_text
from interface_html.decisions import (
    DECIDED,
    JUDGEMENT_KEYS,
    Decisions,
    Key,
    Stale,
    decided_by,
    decisions_that_count,
    read_decisions,
    with_decided,
    with_decisions,
)
from interface_html.format import RATINGS, Item
from interface_html.items import rows_text
from interface_html.outputs import OutputSettings
from interface_html.ratings import median_ratings
from interface_html.rules import (
    Document,
    errors_only,
    find_cycle,
    missing_labels,
    pairs_in_circles,
    text_labels,
)
from interface_html.schema import ALL_PAGES, PAGES_HELP, PageName, Schema, needed_pages
from interface_html.skips import Skip
from interface_html.stored import Submission, read_fitting_study
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of
from interface_html.weighting import NO_WEIGHTS, Weights, read_weights, reliable_submissions

Policy = Literal["first", "latest", "majority", "adjudicated", "all"]
VOTES = ("majority", "adjudicated")  # policies that count votes
Labels = Sequence[Hashable]  # of the parts of an annotation
WITH_ARTICLES = {
    "annotation": "an annotation",
    "comparison": "a comparison",
    "rating": "a rating",
}


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
        complete = [
            with_decided(schema, version, decided)
            for version in versions
            if _is_complete(version, pages)
        ]
        judged += complete
        if not complete:
            left_out += 1
    return judged, left_out


def _without_skipped_judgements(
    items: Sequence[Item], submissions: Sequence[Submission], skips: Sequence[Skip]
) -> list[Item]:
    """The items without the judgements that they came with, of pages that an annotator skipped.

    An annotator who skips an item says that it cannot be judged, so its earlier judgement does not
    count either. Submissions count in any case.
    """
    submitted = {(entry.item, entry.page) for entry in submissions}
    skipped = {(skip.item, skip.page) for skip in skips} - submitted
    kept = []
    for item in items:
        keys = {key for page, key in JUDGEMENT_KEYS.items() if (item.id, page) in skipped}
        row = {key: value for key, value in item.row.items() if key not in keys}
        kept.append(Item(item.id, row))
    return kept


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


def _count_circles(
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


class FeedbackExportSettings(OutputSettings):
    """The submissions to export."""

    task: str = Field(description=TASK_HELP)
    db: FilePath = Field(
        default="outputs/feedback/feedback.sqlite", description="the server's database"
    )
    out: FilePath = Field(description="the feedback file to write")
    dev_file: FilePath | None = Field(
        default=None,
        description="also write a file of held-out prompts; the rows of a prompt, and of the"
        " prompts of a `cluster`, stay together",
    )
    dev_share: float = Field(default=0.2, gt=0, lt=1, description="share of the prompts in it")
    policy: Policy = Field(
        default="latest", description="how to combine several judgements of an item"
    )
    pages: str = Field(
        default=ALL_PAGES,
        description=f"the pages whose judgements a row needs, {PAGES_HELP}",
    )
    adjudicated: str | None = Field(
        default=None,
        description="with policy=adjudicated: the database of the adjudication; its decisions are"
        " taken before the majority. Several are separated by commas: the last decision counts",
    )
    stale: Stale = Field(
        default="refuse",
        description="decisions about other submissions than those that count now: refuse them,"
        " keep them, or drop them and take the majority",
    )
    weights: str | None = Field(
        default=None,
        description="with policy=majority or adjudicated: the file of `reliability`, to weight the"
        " votes",
    )
    least_weight: float | None = Field(
        default=None,
        ge=0,
        description="leave out the judgements of annotators whose weight is lower",
    )


def export(settings: FeedbackExportSettings) -> int:
    """Write the file, whole or not at all. Returns the number of rows.

    Raises:
      UserError: the database cannot be read, belongs to another task, has no row to export, or has
        feedback that does not fit the schema.
    """
    _check_settings(settings)
    task = feedback_of(settings.task)
    pages = needed_pages(task.schema, settings.pages)
    study = read_fitting_study(settings.db, task.schema)
    submissions = study.submissions
    skips = [skip for skip in study.skips if skip.page in pages and skip.item not in study.hidden]
    skipped = _skipped_text(skips)
    weights = NO_WEIGHTS
    unreliable = ""
    if settings.weights is not None:
        weights = read_weights(settings.weights, task.schema.task)
        submissions, unreliable = reliable_submissions(submissions, weights, settings.least_weight)
    decisions: Decisions = {}
    if settings.adjudicated is not None:
        decisions = read_decisions(task, study.items, settings.adjudicated)
        decisions, stale = decisions_that_count(
            decisions, study.submissions, settings.stale, settings.db
        )
        submissions = with_decisions(submissions, decisions)
        print(f"{settings.adjudicated}: {_decided_text(decisions)}")
        if stale:
            print(stale)
    items = _without_skipped_judgements(study.items, submissions, study.skips)
    judged, left_out = judged_items(
        task.schema, items, submissions, settings.policy, pages, weights, decisions
    )
    if not judged:
        not_counted = skipped + unreliable
        raise UserError(_no_rows_text(task.schema, settings, items, submissions, not_counted))
    _check_feedback(task, judged, settings.db)
    written = _write_rows(task, judged, settings)
    left_out_text = _left_out_text(pages, left_out)
    if settings.policy in ("latest", "first"):
        left_out_text += _dropped_text(settings.policy, pages, judged, submissions)
    if settings.policy == "all":
        left_out_text += _incomplete_text(pages, judged, submissions)
    if settings.policy in VOTES:
        left_out_text += _circles_text(_count_circles(task.schema, judged, submissions, weights))
        left_out_text += _one_annotation_text(settings.policy, judged)
    left_out_text += skipped + unreliable
    print(f"{written}{left_out_text}{checks_text(study.hidden)}")
    print(_annotators_text(pages, judged, submissions, settings.policy))
    return len(judged)


def _write_rows(
    task: FeedbackTask, judged: Sequence[Item], settings: FeedbackExportSettings
) -> str:
    """Write the rows. Returns the files with their numbers of rows."""
    rows = [task.format.feedback_row(task.schema, item) for item in judged]
    if settings.dev_file is None:
        write_text(settings.out, rows_text(rows))
        return f"{settings.out}: {counted(len(rows), 'row')}"
    title = task.schema.fields.title
    groups = [str(item.row.get(CLUSTER) or item.row[title]) for item in judged]
    dev = held_out(groups, settings.dev_share, settings.db)
    train_rows = [row for group, row in zip(groups, rows, strict=True) if group not in dev]
    dev_rows = [row for group, row in zip(groups, rows, strict=True) if group in dev]
    write_text(settings.out, rows_text(train_rows))
    write_text(settings.dev_file, rows_text(dev_rows))
    return (
        f"{settings.out}: {counted(len(train_rows), 'row')}; {settings.dev_file}:"
        f" {counted(len(dev_rows), 'row')}"
    )


def _check_settings(settings: FeedbackExportSettings) -> None:
    """Raise `UserError` if a setting would have no effect."""
    if settings.dev_file == settings.out:
        raise UserError("dev_file=... and out=... are the same file: name two")
    if settings.dev_file is None and "dev_share" in settings.model_fields_set:
        raise UserError("dev_share=... needs the file of these rows: give dev_file=... too")
    if settings.weights is None and settings.least_weight is not None:
        raise UserError(
            "least_weight=... needs the weights: name the file of `fgrlhf feedback reliability`"
            " with weights=..."
        )
    if (settings.policy == "adjudicated") != (settings.adjudicated is not None):
        raise UserError(
            "policy=adjudicated and adjudicated=... belong together: adjudicated=... names the"
            " database in which the items of `fgrlhf feedback adjudicate` were decided"
        )
    if settings.stale != "refuse" and settings.adjudicated is None:
        raise UserError(
            f"stale={settings.stale} has no effect without decisions: set policy=adjudicated and"
            " adjudicated=..., or leave it out"
        )
    counts_votes = settings.policy in VOTES
    if settings.weights is not None and settings.least_weight is None and not counts_votes:
        raise UserError(
            f"weights=... has no effect with policy={settings.policy}, which counts no votes: set"
            " policy=majority, or leave judgements out with least_weight=..."
        )


def _check_feedback(task: FeedbackTask, items: Sequence[Item], db: str) -> None:
    """Raise `UserError` with the first problems of the items' feedback.

    The server has checked it, so only a later change of the schema explains them.
    """
    problems = []
    for item in items:
        for field, reason in task.format.feedback_problems(task.schema, item.row):
            problems.append(f"item {item.id}, {field}: {reason}")
    if problems:
        head = f"{db} has feedback that does not fit schema.js, which has changed since:"
        lines = "\n  ".join([head, *first_problems(problems)])
        raise UserError(
            f"{lines}\nRestore the schema, or let the annotators submit these items again; nothing"
            " was written."
        )


def _no_rows_text(
    schema: Schema,
    settings: FeedbackExportSettings,
    items: Sequence[Item],
    submissions: Sequence[Submission],
    not_counted: str,
) -> str:
    """Why no row can be exported, and which pages would give some."""
    needed = needed_pages(schema, settings.pages)
    text = (
        f"{settings.db} has no row to export: {_without_text(needed, len(items))}{not_counted}."
        " Nothing was written"
    )
    for page in schema.pages:
        rows, _ = judged_items(schema, items, submissions, settings.policy, [page])
        if rows:
            text += f". pages={page} would export {counted(len(rows), 'row')}"
    return text


def _without_text(pages: Sequence[PageName], count: int) -> str:
    verb = "lacks" if count == 1 else "lack"
    return f"{counted(count, 'item')} {verb} {' or '.join(WITH_ARTICLES[page] for page in pages)}"


def _left_out_text(pages: Sequence[PageName], left_out: int) -> str:
    if not left_out:
        return ""
    asked = " or ".join(WITH_ARTICLES[page] for page in pages)
    return f"; left out {counted(left_out, 'item')} without {asked}"


def _dropped_text(
    policy: Policy,
    pages: Sequence[PageName],
    judged: Sequence[Item],
    submissions: Sequence[Submission],
) -> str:
    """What a policy that keeps one judgement drops of the exported items; "" if nothing."""
    exported = {item.id for item in judged}
    given = set()
    for one in submissions:
        if one.page in pages and one.item in exported:
            given.add((one.item, one.page, one.annotator))
    if len(given) == len({(item, page) for item, page, _ in given}):
        return ""
    items = counted(len({item for item, _, _ in given}), "item")
    annotators = counted(len({name for _, _, name in given}), "annotator")
    which = "last" if policy == "latest" else "first"
    return (
        f"; {counted(len(given), 'judgement')} of {items} by {annotators}: policy={policy} kept the"
        f" {which} of each, policy=majority counts all"
    )


def _one_annotation_text(policy: Policy, judged: Sequence[Item]) -> str:
    """In how many items annotations differ, of which a vote keeps one whole."""
    votes = [item.row.get(DECIDED, {}).get("annotation") == "majority" for item in judged]
    if not any(votes):
        return ""
    return (
        f"; in {counted(sum(votes), 'item')}, annotations differ: policy={policy} kept the one that"
        " agrees best with the others, policy=all writes each of them"
    )


def _annotators_text(
    pages: Sequence[PageName],
    judged: Sequence[Item],
    submissions: Sequence[Submission],
    policy: Policy,
) -> str:
    """How many annotators have judged the rows: `annotators of a row: 1 (3 rows), 2 (9 rows)`."""
    names: dict[str, set[str]] = {}
    for one in submissions:
        if one.page in pages:
            names.setdefault(one.item, set()).add(one.annotator)
    numbers = Counter(len(names.get(item.id, ())) for item in judged)
    found = ", ".join(f"{number} ({counted(numbers[number], 'row')})" for number in sorted(numbers))
    note = "; each row is one annotator's" if policy == "all" else ""
    return f"annotators of a row: {found}{note}"


def _incomplete_text(
    pages: Sequence[PageName], judged: Sequence[Item], submissions: Sequence[Submission]
) -> str:
    """How many rows policy=all leaves out of exported items, since they lack a judgement."""
    given = {(one.item, one.annotator) for one in submissions if one.page in pages}
    annotators = Counter(item for item, _ in given)
    rows = Counter(item.id for item in judged)
    lacking = sum(max(annotators[item] - count, 0) for item, count in rows.items())
    if not lacking:
        return ""
    asked = " or ".join(WITH_ARTICLES[page] for page in pages)
    return f"; left out {counted(lacking, 'row')} of annotators without {asked} of the item"


def _circles_text(count: int) -> str:
    if not count:
        return ""
    return (
        f"; in {counted(count, 'item')}, the majority went in a circle: its weakest pairs became"
        " ties"
    )


def _decided_text(decisions: Decisions) -> str:
    """How many items were decided, and on which pages: `2 adjudicated items (2 comparisons)`."""
    items = {item for item, _ in decisions}
    counts = Counter(page for _, page in decisions)
    pages = ", ".join(counted(counts[page], page) for page in sorted(counts))
    return counted(len(items), "adjudicated item") + (f" ({pages})" if pages else "")


def _skipped_text(skips: Sequence[Skip]) -> str:
    if not skips:
        return ""
    skipped = counted(len({skip.item for skip in skips}), "item")
    return f"; {skipped} skipped by {counted(len({skip.annotator for skip in skips}), 'annotator')}"


def main(argv: Sequence[str] | None = None) -> None:
    """The program `fgrlhf feedback export`."""
    export(
        settings_from(
            FeedbackExportSettings, argv, "usage: fgrlhf feedback export TASK [key=value ...]"
        )
    )


if __name__ == "__main__":
    run_main(main)
