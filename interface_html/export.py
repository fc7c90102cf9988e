"""What annotators submitted -> a feedback file of the published format.

python -m interface_html.export db=feedback.sqlite out=train_feedback.json policy=majority
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import write_text
from interface_html.database import Submission, read_database
from interface_html.items import Item, row_with, rows_text
from interface_html.schema import QA_SCHEMA, Schema, load_schema
from tasks.qa_feedback.feedback import DataError
from tasks.qa_feedback.validation import feedback_problems

Policy = Literal["first", "latest", "majority", "all"]


def export_rows(
    schema: Schema, items: Sequence[Item], submissions: Sequence[Submission], policy: Policy
) -> tuple[list[dict[str, Any]], int]:
    """Rows in the items' order, and how many items are left out because something is missing.

    `first`, `latest`: one annotation and one comparison an item, by time. `majority`: of each pair
      what most say (a
    tie if nothing leads), and the annotation that agrees best with the others. `all`: a row for
    each annotator. Of an annotator who submitted twice the latest counts, except under `first`.
    """
    said: dict[tuple[str, str], dict[str, Mapping]] = {}
    for one in submissions:
        by_annotator = said.setdefault((one.item, one.page), {})
        if policy == "first" and one.annotator in by_annotator:
            continue
        if policy == "latest":  # the order of the dict is that of the latest submissions
            by_annotator.pop(one.annotator, None)
        by_annotator[one.annotator] = one.doc
    rows, left_out = [], 0
    for item in items:
        annotations, comparisons = (
            said.get((item.id, "annotation"), {}),
            said.get((item.id, "comparison"), {}),
        )
        made = _rows_of(schema, item, annotations, comparisons, policy)
        rows += made
        left_out += not made
    return rows, left_out


def _rows_of(
    schema: Schema, item: Item, annotations: Mapping, comparisons: Mapping, policy: Policy
) -> list[dict]:
    if policy == "all":
        names = list(dict.fromkeys([*annotations, *comparisons])) or [None]
        rows = [
            row_with(schema, item, annotations.get(name), comparisons.get(name)) for name in names
        ]
    else:
        few = {"first": lambda docs: docs[0], "latest": lambda docs: docs[-1]}
        note = few.get(policy, lambda docs: most_agreed(schema, item, docs))
        vote = few.get(
            policy, lambda docs: {"preference": majority([doc["preference"] for doc in docs])}
        )
        rows = [
            row_with(
                schema,
                item,
                annotations and note([*annotations.values()]) or None,
                comparisons and vote([*comparisons.values()]) or None,
            )
        ]
    return [
        row for row in rows if "feedback" in row and ("preference" in row or not schema.compares)
    ]


def majority(preferences: Sequence[Sequence[int]]) -> list[int]:
    """For each pair what most annotators say; 0 where no value leads."""
    made = []
    for values in zip(*preferences):
        (value, most), *others = Counter(values).most_common()
        made.append(value if not others or others[0][1] < most else 0)
    return made


def labels_of(schema: Schema, text: str, doc: Mapping[str, Any]) -> list[str | None]:
    """The error type of each character; None where nothing is marked."""
    labels: list[str | None] = [None] * len(text)
    for error in doc["errors"]:
        labels[error["start"] : error["end"]] = [error["error type"]] * (
            error["end"] - error["start"]
        )
    return labels


def most_agreed(schema: Schema, item: Item, docs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The annotation whose characters agree most with the others'; the earliest of equals."""
    text = item.row[schema.fields.text]
    labels = [labels_of(schema, text, doc) for doc in docs]
    agreed = [sum(a == b for other in labels for a, b in zip(mine, other)) for mine in labels]
    return docs[agreed.index(max(agreed))]


class Settings(StrictModel):
    """Which submissions become rows."""

    db: str = Field(
        "outputs/feedback/feedback.sqlite", description="the database that serve.sh writes"
    )
    out: str = Field(description="the feedback file to write")
    policy: Policy = Field("latest", description="where several annotators did an item")
    schema_file: str = Field(str(QA_SCHEMA), description="the task's schema")


def export(settings: Settings) -> int:
    """Write the file, whole or not at all; returns the number of rows."""
    schema = load_schema(settings.schema_file)
    task, items, submissions = read_database(settings.db)
    if task != schema.task:
        raise UserError(
            f"{settings.db} holds feedback of the task {task}, the schema is of {schema.task}:"
            " schema_file=..."
        )
    rows, left_out = export_rows(schema, items, submissions, settings.policy)
    problems = feedback_problems(rows, settings.out) if schema.task == "qa_feedback" else []
    if problems:
        raise DataError(problems)
    write_text(settings.out, rows_text(rows))
    lacking = (
        f"; {left_out} items lack an annotation{' or a comparison' * schema.compares} and are"
        " left out"
        if left_out
        else ""
    )
    print(f"{settings.out}: {len(rows)} rows{lacking}")
    return len(rows)


if __name__ == "__main__":
    run_main(lambda: export(settings_from(Settings)))
