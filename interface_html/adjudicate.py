"""Make items of the annotations that disagree, for an adjudicator who decides.

    fgrlhf feedback adjudicate NAME db=feedback.sqlite out=items.json
    fgrlhf feedback serve NAME items=items.json db=adjudication.sqlite
    fgrlhf feedback export NAME db=feedback.sqlite out=train_feedback.json \\
        policy=adjudicated adjudicated=adjudication.sqlite

The items are those with two annotations or more, in the order of their disagreement, largest first.
Each has `annotations`, what the annotators submitted, and `shared`, an annotation with the marks
that all have: the annotation page shows the first and starts from the second. It has no
suggestions. The adjudicator's submissions are in a database
of their own; the annotators' submissions stay as they are.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.data.problems import counted
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import write_text
from interface_html.format import (
    ANNOTATIONS,
    FEEDBACK_KEYS,
    ITEM_KEYS,
    SHARED,
    Item,
    is_adjudication,
)
from interface_html.items import item_json, rows_text
from interface_html.reliability import latest_documents
from interface_html.rules import character_labels, errors_only
from interface_html.schema import Schema
from interface_html.stored import Submission, read_database
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

Document = Mapping[str, Any]
# of an annotator's error: the adjudicator decides between annotations, and has no suggestions
LEFT_OUT = ("quote", "origin")


# ---- pure functions ------------------------------------------------------------------------------


def disagreement(text: str, annotations: Sequence[Document]) -> float:
    """1 - F1 of the marked characters, over all pairs of annotations; 0 if nothing is marked.

    1 - sum_pairs 2 |same label| / sum_pairs (|marked by one| + |marked by the other|)
    """
    labels = [character_labels(text, doc) for doc in annotations]
    same = 0
    marked = 0
    for first, second in combinations(labels, 2):
        same += sum(label is not None and label == other for label, other in zip(first, second))
        marked += sum(label is not None for label in [*first, *second])
    return 1 - 2 * same / marked if marked else 0.0


def shared_marks(schema: Schema, text: str, annotations: Sequence[Document]) -> dict[str, Any]:
    """The annotation with the marks that all annotations have.

    A mark is shared if its kind and span are; its evidence is that of the first annotation. The
    correction is the text itself: the adjudicator writes it.
    """
    first, *others = annotations
    errors = []
    for error in first["errors"]:
        if all(_span(error) in map(_span, other["errors"]) for other in others):
            errors.append({key: value for key, value in error.items() if key not in LEFT_OUT})
    missing = []
    for info in first["missing-info"]:
        if all(info in other["missing-info"] for other in others):
            missing.append(info)
    return {
        "errors": errors,
        "missing-info": missing,
        "corrected-prediction": text if schema.correction else "",
    }


def _span(error: Mapping[str, Any]) -> tuple[str, int, int]:
    return error["error type"], error["start"], error["end"]


def items_to_adjudicate(
    schema: Schema, items: Sequence[Item], submissions: Sequence[Submission]
) -> list[Item]:
    """The items with two annotations or more, with these, the largest disagreement first."""
    documents = latest_documents(submissions, "annotation")
    ranked = []
    for item in items:
        by_annotator = documents.get(item.id, {})
        if len(by_annotator) < 2:
            continue
        text = item.row[schema.text]
        annotations = list(by_annotator.values())
        left_out = (*FEEDBACK_KEYS, *ITEM_KEYS)
        row = {key: value for key, value in item.row.items() if key not in left_out}
        row[ANNOTATIONS] = [{"annotator": name, **doc} for name, doc in by_annotator.items()]
        row[SHARED] = shared_marks(schema, text, annotations)
        errors = [errors_only(schema, doc) for doc in annotations]
        ranked.append((disagreement(text, errors), Item(item.id, row)))
    ranked.sort(key=lambda entry: -entry[0])  # stable: equals stay in the order of the items
    return [item for _, item in ranked]


def with_decisions(
    submissions: Sequence[Submission], decisions: Mapping[str, Submission]
) -> list[Submission]:
    """The submissions with one decision in place of the annotations of each adjudicated item."""
    kept = []
    for submission in submissions:
        is_decided = submission.page == "annotation" and submission.item in decisions
        if not is_decided:
            kept.append(submission)
    return [*kept, *decisions.values()]


# ---- files ---------------------------------------------------------------------------------------


def read_decisions(task: FeedbackTask, items: Sequence[Item], path: str) -> dict[str, Submission]:
    """The latest annotation of each item in the database of an adjudication.

    Raises:
      UserError: the file cannot be read, or its items are not from `adjudicate`, or not of this
        study.
    """
    decided = read_database(path, task.schema.task)
    contents = {item.id: task.content(item) for item in items}
    for item in decided.items:
        if not is_adjudication(item.row):
            raise UserError(
                f"{path}: item {item.id!r} has no annotations to decide between: name the database"
                " of the items that `fgrlhf feedback adjudicate` wrote"
            )
        if contents.get(item.id) != task.content(item):
            raise UserError(
                f"{path}: item {item.id!r} is not in db=... with the same texts: name the database"
                " that its annotations are from"
            )
    return {entry.item: entry for entry in decided.submissions if entry.page == "annotation"}


class Settings(StrictModel):
    """The database to read."""

    task: str = Field(description=TASK_HELP)
    db: str = Field(default="outputs/feedback/feedback.sqlite", description="the server's database")
    out: str = Field(description="the file of items to write")


def adjudicate(settings: Settings) -> list[Item]:
    """Write the items, whole or not at all.

    Raises:
      UserError: the database cannot be read, or no item has two annotations.
    """
    task = feedback_of(settings.task)
    study = read_database(settings.db, task.schema.task)
    chosen = items_to_adjudicate(task.schema, study.items, study.submissions)
    if not chosen:
        raise UserError(
            f"{settings.db} has no item with two annotations, so there is nothing to decide: serve"
            " it with per_item=2 or more"
        )
    write_text(settings.out, rows_text(item_json(task, item) for item in chosen))
    print(f"{settings.out}: {counted(len(chosen), 'item')}, largest disagreement first")
    return chosen


def main(argv: Sequence[str] | None = None) -> None:
    usage = "usage: fgrlhf feedback adjudicate TASK [key=value ...]"
    adjudicate(settings_from(Settings, argv, usage))


if __name__ == "__main__":
    run_main(main)
