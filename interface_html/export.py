"""Write the submissions in a server's database as a feedback file in the task's format.

    fgrlhf feedback export NAME db=feedback.sqlite out=train_feedback.json \\
        policy=majority pages=both
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.data.problems import DataError, Problem, counted
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import write_text
from interface_html.database import Submission, read_database
from interface_html.format import Item
from interface_html.items import rows_text
from interface_html.rules import character_labels
from interface_html.schema import PageName, Schema
from interface_html.skips import Skip, read_skips, without_skipped
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

Policy = Literal["first", "latest", "majority", "all"]
Pages = Literal["annotation", "comparison", "both"]
Document = Mapping[str, Any]
WITH_ARTICLES = {"annotation": "an annotation", "comparison": "a comparison"}


def judged_items(
    schema: Schema,
    items: Sequence[Item],
    submissions: Sequence[Submission],
    policy: Policy,
    pages: Sequence[PageName],
) -> tuple[list[Item], int]:
    """Items with the feedback to export, in their order, and the number of items left out.

    An item is left out if it lacks a judgement of one of `pages`. Judgements that came with an item
    count if there are no submissions for it.

    Args:
      schema: the task's schema.
      items: all items of the study.
      submissions: sorted by time.
      policy: `first` or `latest`: one annotation and one comparison of each item, by time.
        `majority`: for each pair the value that most annotators chose (a tie if no value leads),
        and the annotation that agrees best with the others. `all`: the item once for each
        annotator. Of several submissions of an annotator the latest counts, with `first` the first.
      pages: the judgements that a row needs. It has those of other pages too, if there are any.
    """
    annotations = _documents(submissions, "annotation", policy)
    comparisons = _documents(submissions, "comparison", policy)
    judged: list[Item] = []
    left_out = 0
    for item in items:
        of_item = annotations.get(item.id, {}), comparisons.get(item.id, {})
        if policy == "all":
            versions = _one_per_annotator(item, *of_item)
        else:
            versions = [_chosen(schema, item, *of_item, policy)]
        complete = [version for version in versions if _is_complete(version, pages)]
        judged += complete
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


def _with_feedback(item: Item, annotation: Document | None, comparison: Document | None) -> Item:
    row = dict(item.row)
    if annotation is not None:
        row["feedback"] = annotation
    if comparison is not None:
        row["preference"] = comparison["preference"]
    return Item(item.id, row)


def _one_per_annotator(
    item: Item, annotations: Mapping[str, Document], comparisons: Mapping[str, Document]
) -> list[Item]:
    names = dict.fromkeys([*annotations, *comparisons])
    if not names:
        return [item]
    return [_with_feedback(item, annotations.get(name), comparisons.get(name)) for name in names]


def _chosen(
    schema: Schema,
    item: Item,
    annotations: Mapping[str, Document],
    comparisons: Mapping[str, Document],
    policy: Policy,
) -> Item:
    notes, votes = list(annotations.values()), list(comparisons.values())
    if policy == "majority":
        note = most_agreed(item.row[schema.text], notes) if notes else None
        vote = {"preference": majority([doc["preference"] for doc in votes])} if votes else None
    else:
        index = 0 if policy == "first" else -1
        note = notes[index] if notes else None
        vote = votes[index] if votes else None
    return _with_feedback(item, note, vote)


def _is_complete(item: Item, pages: Sequence[PageName]) -> bool:
    judgements = {"annotation": item.feedback, "comparison": item.preference}
    return all(judgements[page] is not None for page in pages)


def majority(preferences: Sequence[Sequence[int]]) -> list[int]:
    """For each pair, the value that most annotators chose; 0 (a tie) if no value leads."""
    winners = []
    for values in zip(*preferences):
        (value, count), *others = Counter(values).most_common()
        leads = not others or others[0][1] < count
        winners.append(value if leads else 0)
    return winners


def most_agreed(text: str, annotations: Sequence[Document]) -> Document:
    """The annotation whose character labels agree most with the others; the first of equals."""
    labels = [character_labels(text, doc) for doc in annotations]

    def agreement(index: int) -> int:
        return sum(
            label == other for others in labels for label, other in zip(labels[index], others)
        )

    return annotations[max(range(len(annotations)), key=agreement)]


class Settings(StrictModel):
    """The submissions to export."""

    task: str = Field(description=TASK_HELP)
    db: str = Field(default="outputs/feedback/feedback.sqlite", description="the server's database")
    out: str = Field(description="the feedback file to write")
    policy: Policy = Field(
        default="latest", description="how to combine several judgements of an item"
    )
    pages: Pages = Field(
        default="both",
        description="the judgements that a row needs; both: those of all pages of the task",
    )


def export(settings: Settings) -> int:
    """Write the file, whole or not at all. Returns the number of rows.

    Raises:
      DataError: a row could not be read back.
      UserError: the database cannot be read, belongs to another task, or has no row to export.
    """
    task = feedback_of(settings.task)
    pages = _needed_pages(task.schema, settings.pages)
    items, submissions = read_database(settings.db, task.schema.task)
    skips = read_skips(settings.db)
    submissions = without_skipped(submissions, skips)
    judged, left_out = judged_items(task.schema, items, submissions, settings.policy, pages)
    if not judged:
        raise UserError(_no_rows_text(task.schema, settings, items, submissions))
    check_feedback(task, judged, settings.out)
    rows = [task.format.feedback_row(task.schema, item) for item in judged]
    write_text(settings.out, rows_text(rows))
    print(
        f"{settings.out}: {counted(len(rows), 'row')}{_left_out_text(pages, left_out)}"
        f"{_skipped_text(skips)}"
    )
    return len(rows)


def check_feedback(task: FeedbackTask, items: Sequence[Item], file: str) -> None:
    """Raise `DataError` with all problems of the items' feedback."""
    problems = []
    for number, item in enumerate(items):
        for complaint in task.format.feedback_problems(task.schema, item.row):
            problems.append(Problem(file, number, *complaint))
    if problems:
        raise DataError(problems)


def _needed_pages(schema: Schema, pages: Pages) -> Sequence[PageName]:
    if pages == "both":
        return schema.pages
    if pages not in schema.pages:
        raise UserError(
            f"the task {schema.task} has no {pages} page: set pages={schema.pages[0]}, or leave out"
            " pages=..."
        )
    return [pages]


def _no_rows_text(
    schema: Schema, settings: Settings, items: Sequence[Item], submissions: Sequence[Submission]
) -> str:
    """Why no row can be exported, and which pages would give some."""
    needed = _needed_pages(schema, settings.pages)
    text = (
        f"{settings.db} has no row to export: {_without_text(needed, len(items))}. Nothing was"
        " written"
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


def _skipped_text(skips: Sequence[Skip]) -> str:
    if not skips:
        return ""
    skipped = counted(len({skip.item for skip in skips}), "item")
    return f"; {skipped} skipped by {counted(len({skip.annotator for skip in skips}), 'annotator')}"


def main(argv: Sequence[str] | None = None) -> None:
    export(settings_from(Settings, argv, "usage: fgrlhf feedback export TASK [key=value ...]"))


if __name__ == "__main__":
    run_main(main)
