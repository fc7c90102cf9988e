"""Make items for annotators from samples of a policy or from feedback files.

    fgrlhf feedback items NAME source=samples.jsonl prompts=train.json out=items.json

The source is a file of the task's format: samples, feedback, or the items themselves.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import write_text
from fgrlhf.base.records import (
    AnyText,
    Complaint,
    Problem,
    RowError,
    Text,
    key_problems,
    not_a,
    refuse_rows,
)
from fgrlhf.configs.strict import FilePath
from fgrlhf.data.places import Source
from fgrlhf.data.rows import Columns, Row
from interface_html.conversations import source_mark_problems
from interface_html.format import ITEM_KEYS, BlankItemError, Item, ItemError
from interface_html.other_rows import check_file, check_rows
from interface_html.outputs import OutputSettings
from interface_html.references import References
from interface_html.schema import Schema
from interface_html.submitted import submitted_problems
from interface_html.suggestions import item_suggestion_problems
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

LONGEST_ID = 200
PROMPTS_HELP = "the prompts of the samples, if they have the reference outputs"


def read_items(
    task: FeedbackTask,
    path: str | Path,
    prompts: str | Path | None = None,
    columns: Columns | None = None,
) -> list[Item]:
    """The items of a file. Prints how many rows without judgements have a blank output.

    These rows are left out: a policy that is sampled sometimes says nothing.

    Args:
      task: the task of the file.
      path: samples, feedback or items, in the task's format.
      prompts: the prompts of samples, for the reference outputs.
      columns: keys of the task's format -> keys of the file, if they differ.

    Raises:
      DataError: malformed rows, with all their problems.
      UserError: a file cannot be read, all its rows are blank, or it has another known form.
    """
    check_file(path)
    if prompts and task.schema.fields.reference is None:
        raise UserError(
            f"the pages of this task show no reference output, so prompts={shorten(prompts)} would"
            " not be read: leave it out, or set `reference` in `fields` of the task's schema.js"
        )
    references = References(prompts, task.format.references(prompts)) if prompts else None
    n_found = 0
    items: list[Item] = []
    problems: list[Problem] = []
    n_blank = 0
    first_of_id: dict[str, tuple[int, Item]] = {}
    rows = task.format.read(path)
    check_rows(task, path, rows, columns or {})
    for number, given in enumerate(rows):
        try:
            row = _renamed(given, columns or {})
            found = _references(task, row, references)
            item = _item(task, row, number, found or ())
        except BlankItemError:
            n_blank += 1
            continue
        except RowError as error:
            problems.append(Problem(number, error.key, error.reason, str(path)))
            continue
        except ItemError as error:
            problems += [Problem(number, *complaint, str(path)) for complaint in error.complaints]
            continue
        n_found += found is not None
        if item.id in first_of_id:
            first_number, first = first_of_id[item.id]
            reason = f"{item.id!r} is also the id of row {first_number}"
            if task.content(item) == task.content(first):
                reason += ", with the same texts, as in a file of `export` with policy=all"
            problems.append(Problem(number, "id", reason, str(path)))
        first_of_id.setdefault(item.id, (number, item))
        items.append(item)
    refuse_rows(problems)
    if n_blank and not items:
        raise UserError(
            f"{path} has a blank response in every row, so no item is left: sample"
            " again, with a policy that answers"
        )
    if prompts:
        print(f"{prompts}: references for {n_found} of {counted(len(items), 'item')}")
    if n_blank:
        print(f"{path}: left out {counted(n_blank, 'row')} with a blank response")
    return items


def _references(
    task: FeedbackTask, row: Any, references: References | None
) -> Sequence[str] | None:
    """The references of a row's prompt; None if none are known."""
    if references is None or not isinstance(row, dict):
        return None
    name = row.get("id")
    return references.of(task.format.prompt_text(row), name if isinstance(name, str) else None)


def _renamed(row: Any, columns: Columns) -> Any:
    """A row with the keys of its format. Raises `RowError` if it lacks one of the file's keys."""
    if not isinstance(row, dict) or not columns:
        return row
    view = Row(row, columns)
    values = {name: view.get(name) for name in columns}
    return {**view.rest(), **values}


def _item(task: FeedbackTask, row: Any, number: int, references: Sequence[str]) -> Item:
    if not isinstance(row, dict):
        raise ItemError([("row", not_a(dict, row))])
    row = dict(row)
    name = row.pop("id", str(number))
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        raise ItemError([("id", f"must be a string of 1 to {LONGEST_ID} characters")])
    item = Item(name, task.format.item_row(task.schema, row, references))
    complaints = _item_problems(task.schema, item.row)
    complaints += source_mark_problems(task.schema, item.row)
    complaints = complaints or item_suggestion_problems(task.schema, item.row)
    complaints = complaints or list(submitted_problems(task.schema, item.row))
    complaints = complaints or list(task.format.feedback_problems(task.schema, item.row))
    if complaints:
        raise ItemError(complaints)
    return item


def _item_problems(schema: Schema, row: Mapping[str, Any]) -> list[Complaint]:
    """Missing and empty texts of an item. Only the reference may be blank."""
    title = schema.fields.title
    other_keys = [key for key in schema.text_keys if key != title]
    complaints = key_problems(row, "", {title: Text, **dict.fromkeys(other_keys, AnyText)})
    complaints += key_problems(row, "", dict.fromkeys(schema.context_keys, list[Source]))
    for key in schema.fields.outputs:
        text = row.get(key)
        if isinstance(text, str) and not text.strip():
            complaints.append((key, "is empty, so there is nothing to judge: remove this row"))
    return complaints


def item_json(task: FeedbackTask, item: Item) -> dict[str, Any]:
    """An item as the row of a file, with its id, its earlier feedback and its suggestions."""
    own = {key: item.row[key] for key in ITEM_KEYS if key in item.row}
    return {"id": item.id, **task.format.feedback_row(task.schema, item), **own}


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """The text of a feedback file; rows of a published file give exactly its bytes."""
    return json.dumps(list(rows), indent=2)


class ItemsSettings(OutputSettings):
    """The file to make items of."""

    task: str = Field(description=TASK_HELP)
    source: str = Field(description="samples, feedback or items, in the task's format")
    out: FilePath = Field(description="the file of items to write")
    prompts: str | None = Field(default=None, description=PROMPTS_HELP)
    columns: dict[str, str | list[str]] = Field(
        default_factory=dict, description="row key -> key of the source, if they differ"
    )


def write_items(settings: ItemsSettings) -> Sequence[Item]:
    """Read the source and write its items."""
    task = feedback_of(settings.task)
    items = read_items(task, settings.source, settings.prompts, settings.columns)
    write_text(settings.out, rows_text(item_json(task, item) for item in items))
    print(f"{settings.out}: {counted(len(items), 'item')}")
    return items
