"""Make items of the judgements that disagree, for an adjudicator who decides.

    fgrlhf feedback adjudicate NAME db=feedback.sqlite out=items.json
    fgrlhf feedback serve NAME items=items.json db=adjudication.sqlite
    fgrlhf feedback export NAME db=feedback.sqlite out=train_feedback.json \\
        policy=adjudicated adjudicated=adjudication.sqlite

The items are those with two annotations, comparisons or ratings or more that differ, in the order
of their disagreement, largest first. Each has what the annotators submitted (submitted.py), and no
suggestions. Its pages show that side by side, and the adjudicator decides every difference. The
decisions are submissions in a database of their own; the annotators' submissions stay as they are.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import write_text
from fgrlhf.configs.strict import FilePath
from interface_html.decisions import are_disputed, read_decisions, stale_decisions
from interface_html.format import FEEDBACK_KEYS, ITEM_KEYS, SHARED, Item
from interface_html.items import item_json, rows_text
from interface_html.outputs import OutputSettings
from interface_html.rules import (
    Document,
    errors_only,
    missing_labels,
    side_of,
    text_labels,
)
from interface_html.schema import ALL_PAGES, PAGES_HELP, PageName, Schema, needed_pages
from interface_html.stored import Study, Submission, read_fitting_study
from interface_html.submitted import ADJUDICATION_KEYS, KEY_OF_PAGE, is_decided_on
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

# of an annotator's error: the adjudicator decides between annotations, and has no suggestions
LEFT_OUT = ("quote", "origin")
# what an adjudicator sees of a submission
SHOWN_KEYS = {
    "comparison": ("preference", "all-bad", "comment"),
    "rating": ("ratings", "comment"),
}


# ---- pure functions ------------------------------------------------------------------------------


def different_labels(labels: Sequence[Sequence[Hashable]]) -> float:
    """1 - F1 of the labels of annotations, over all pairs of them; 0 if nothing is marked.

    1 - sum_pairs 2 |same label| / sum_pairs (|marked by one| + |marked by the other|)
    """
    same = 0
    marked = 0
    for first, second in combinations(labels, 2):
        same += sum(label is not None and label == other for label, other in zip(first, second))
        marked += sum(label is not None for label in [*first, *second])
    return 1 - 2 * same / marked if marked else 0.0


def shared_marks(schema: Schema, text: str, annotations: Sequence[Document]) -> dict[str, Any]:
    """The annotation with the marks that all annotations have.

    A mark is shared if its kind and span are; its evidence and its reason are those of the first
    annotation. It has a severity only if all have the same: otherwise the adjudicator chooses.
    Missing information is shared if its kind, source and sentences are, in any order. The
    correction is the text itself: the adjudicator writes it.
    """
    first, *others = annotations
    marks = [mark for doc in annotations for mark in doc["errors"]]
    errors = []
    for error in first["errors"]:
        same = [mark for mark in marks if _span(mark) == _span(error)]  # at most one of each
        if len(same) < len(annotations):
            continue
        shared = {key: value for key, value in error.items() if key not in LEFT_OUT}
        if len({mark.get("severity") for mark in same}) > 1:
            shared.pop("severity", None)
        errors.append(shared)
    missing_of_others = [_sorted_missing(schema, other) for other in others]
    missing = []
    for info, compared in zip(first["missing-info"], _sorted_missing(schema, first)):
        if all(compared in listed for listed in missing_of_others):
            missing.append(info)
    return {
        "errors": errors,
        "missing-info": missing,
        "corrected-prediction": text if schema.correction else "",
    }


def _span(error: Mapping[str, Any]) -> tuple[str, str, int, int]:
    return error["error type"], side_of(error), error["start"], error["end"]


def _sorted_missing(schema: Schema, doc: Document) -> list[dict[str, Any]]:
    """The missing information of an annotation, each with its sentences in order.

    templates/adjudicating.js compares it in the same way.
    """
    context = schema.fields.context
    if context is None:
        return []
    key = context.sentences
    return [{**info, key: sorted(info[key])} for info in doc["missing-info"]]


def different_preferences(comparisons: Sequence[Document]) -> float:
    """The share of different values, over all pairs of comparisons and of outputs."""
    values = [doc["preference"] for doc in comparisons]
    return _mean(a != b for one, other in combinations(values, 2) for a, b in zip(one, other))


def different_ratings(schema: Schema, ratings: Sequence[Document]) -> float:
    """The mean distance of two ratings, as a share of the scale's length.

    mean |a - b| / (highest - lowest), over all pairs of ratings, outputs and scales
    """
    distances = []
    for one, other in combinations([doc["ratings"] for doc in ratings], 2):
        for output in schema.fields.outputs:
            for scale in schema.ratings:
                distance = abs(one[output][scale.name] - other[output][scale.name])
                distances.append(distance / (scale.highest - scale.lowest))
    return _mean(distances)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def items_to_adjudicate(
    schema: Schema,
    items: Sequence[Item],
    submissions: Sequence[Submission],
    pages: Sequence[PageName] | None = None,
    decided: Collection[tuple[str, str]] = (),
    alike: Counter[PageName] | None = None,
) -> list[Item]:
    """The items that annotators have judged differently, the largest disagreement first.

    The disagreement of an item is the largest one of its pages.

    Args:
      schema: the task's schema.
      items: the items of the study.
      submissions: sorted by time; the latest of each annotator counts.
      pages: whose judgements to decide between; by default those of all pages.
      decided: items and pages to leave out.
      alike: counts, by page, the items that are left out because all judged them alike.
    """
    wanted = schema.pages if pages is None else pages
    latest = {page: _latest(submissions, page) for page in wanted}
    left_out = (*FEEDBACK_KEYS, *ITEM_KEYS, *ADJUDICATION_KEYS)
    ranked = []
    for item in items:
        row = {key: value for key, value in item.row.items() if key not in left_out}
        degrees = []
        for page in wanted:
            judged = latest[page].get(item.id, [])
            if len(judged) < 2 or (item.id, page) in decided:
                continue
            docs = [submission.doc for submission in judged]
            if not are_disputed(schema, page, docs):
                if alike is not None:
                    alike[page] += 1
                continue
            row[KEY_OF_PAGE[page]] = [_entry(submission) for submission in judged]
            if page == "annotation":
                row[SHARED] = shared_marks(schema, item.row[schema.text], docs)
            degrees.append(disagreement(schema, item, page, docs))
        if degrees:
            ranked.append((max(degrees), Item(item.id, row)))
    ranked.sort(key=lambda entry: -entry[0])  # stable: equals stay in the order of the items
    return [item for _, item in ranked]


def _latest(submissions: Sequence[Submission], page: PageName) -> dict[str, list[Submission]]:
    """The latest submission of each annotator of a page, by item."""
    latest: dict[str, dict[str, Submission]] = {}
    for submission in submissions:
        if submission.page == page:
            latest.setdefault(submission.item, {})[submission.annotator] = submission
    return {item: list(by_annotator.values()) for item, by_annotator in latest.items()}


def _entry(submission: Submission) -> dict[str, Any]:
    """A submission in the row of an item."""
    doc = submission.doc
    keys = SHOWN_KEYS.get(submission.page, tuple(doc))
    shown = {key: doc[key] for key in keys if key in doc}
    return {"annotator": submission.annotator, "revision": submission.revision, **shown}


def disagreement(schema: Schema, item: Item, page: PageName, docs: Sequence[Document]) -> float:
    """How far the judgements of an item on a page disagree: 0 to 1.

    Annotations: `different_labels` of the characters of all texts in which errors are marked, and
    of the sentences that are named as missing; each counts as a character does. It orders items,
    with one scale for all pages. `fgrlhf feedback agreement` matches whole spans instead.
    """
    if page == "annotation":
        missing = missing_labels(schema, docs)
        labels = []
        for doc, missing_of_doc in zip(docs, missing, strict=True):
            errors = errors_only(schema, doc)
            labels.append([*text_labels(schema, item.row, errors), *missing_of_doc])
        return different_labels(labels)
    if page == "comparison":
        return different_preferences(docs)
    return different_ratings(schema, docs)


# ---- files ---------------------------------------------------------------------------------------


class AdjudicateSettings(OutputSettings):
    """The database to read."""

    task: str = Field(description=TASK_HELP)
    db: FilePath = Field(
        default="outputs/feedback/feedback.sqlite", description="the server's database"
    )
    out: FilePath = Field(description="the file of items to write")
    pages: str = Field(
        default=ALL_PAGES,
        description=f"the pages whose judgements are decided between, {PAGES_HELP}",
    )
    decided: str | None = Field(
        default=None,
        description="databases of earlier adjudications, separated by commas: what they decide is"
        " left out, unless annotators have changed their judgements since",
    )


def adjudicate(settings: AdjudicateSettings) -> list[Item]:
    """Write the items, whole or not at all.

    Raises:
      UserError: the database cannot be read, or no item was judged differently by two annotators.
    """
    task = feedback_of(settings.task)
    pages = needed_pages(task.schema, settings.pages)
    study = read_fitting_study(settings.db, task.schema, pages)
    decided = _decided(task, study, settings.decided) if settings.decided else ()
    alike: Counter[PageName] = Counter()
    chosen = items_to_adjudicate(task.schema, study.items, study.submissions, pages, decided, alike)
    if not chosen and decided:
        raise UserError(
            f"{settings.decided} decides everything that annotators have judged differently in"
            f" {settings.db}, so nothing is left to decide: nothing was written"
        )
    if not chosen:
        judgements = " or ".join(f"two {page}s" for page in pages)
        way_out = "all annotators judged alike" if alike else "serve it with per_item=2 or more"
        raise UserError(
            f"{settings.db} has no item with {judgements} that differ, so there is nothing to"
            f" decide: {way_out}"
        )
    write_text(settings.out, rows_text(item_json(task, item) for item in chosen))
    counts = []
    for page in pages:
        count = sum(is_decided_on(item.row, page) for item in chosen)
        if count:
            counts.append(f"{count} with {page}s")
    print(
        f"{settings.out}: {counted(len(chosen), 'item')} ({', '.join(counts)}), largest"
        " disagreement first"
    )
    if alike:
        judged = ", ".join(counted(count, page) for page, count in alike.items())
        print(f"  left out, since all annotators judged alike: {judged}")
    return chosen


def _decided(task: FeedbackTask, study: Study, paths: str) -> Collection[tuple[str, str]]:
    """The items and pages whose decisions are about the judgements that count now."""
    decisions = read_decisions(task, study.items, paths)
    return decisions.keys() - stale_decisions(decisions, study.submissions).keys()
