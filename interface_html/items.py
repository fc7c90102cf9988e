"""Make items for annotators from samples of a policy or from feedback files.

    fgrlhf feedback items NAME source=samples.jsonl prompts=train.json out=items.json

The source is a file of the task's format: samples, feedback, or the items themselves. With
blind=true, several sources are the samples of one policy each (blind.py).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt, model_validator

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import write_json, write_text
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
from fgrlhf.configs.strict import FilePath, refuse
from fgrlhf.data.places import Source
from fgrlhf.data.rows import Columns, Row
from interface_html.blind import (
    blind_items,
    check_key_is_free,
    key_path,
    policy_names,
    with_outputs,
)
from interface_html.conversations import source_mark_problems
from interface_html.format import ITEM_KEYS, BlankItemError, Item, ItemError
from interface_html.other_rows import check_file, check_rows
from interface_html.outputs import OutputSettings
from interface_html.references import References
from interface_html.schema import MOST_OUTPUTS, Schema
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
    source: str = Field(
        description="samples, feedback or items, in the task's format; with blind=true a file of"
        " samples for each policy, separated by commas"
    )
    out: FilePath = Field(description="the file of items to write")
    prompts: str | None = Field(default=None, description=PROMPTS_HELP)
    columns: dict[str, str | list[str]] = Field(
        default_factory=dict, description="row key -> key of the source, if they differ"
    )
    blind: bool = Field(
        default=False,
        description="true: mix the policies in random order, without their names; the file"
        " <out>.key.json has them",
    )
    n: PositiveInt | None = Field(
        default=None, description="with blind=true, the number of prompts; null: all"
    )
    seed: int = Field(default=0, description="of the order of blind items")

    @model_validator(mode="after")
    def _only_blind_items_are_drawn(self):
        if self.n is not None and not self.blind:
            refuse([("n", "draws prompts of blind items: set blind=true")])
        if self.blind and len([path for path in self.source.split(",") if path]) < 2:
            refuse([("source", "blind=true needs a file for each policy: source=a.jsonl,b.jsonl")])
        return self


def write_items(settings: ItemsSettings) -> Sequence[Item]:
    """Read the source and write its items."""
    task = feedback_of(settings.task)
    if settings.blind:
        return _write_blind_items(task, settings)
    items = read_items(task, settings.source, settings.prompts, settings.columns)
    write_text(settings.out, rows_text(item_json(task, item) for item in items))
    print(f"{settings.out}: {counted(len(items), 'item')}")
    return items


def _task_of_source(task: FeedbackTask, settings: ItemsSettings, path: str) -> FeedbackTask:
    """The task with as many outputs as the rows of the file have, for reading it."""
    rows = task.format.read(path)
    if not rows:
        raise UserError(f"{path} has no rows: give a file with responses of a policy")
    for count in range(MOST_OUTPUTS, 0, -1):
        of_source = replace(task, schema=with_outputs(task.schema, count))
        for number, row in enumerate(rows[:20]):  # the first may be wrong
            with suppress(RowError, ItemError):
                with suppress(BlankItemError):  # its outputs were counted
                    _item(of_source, _renamed(row, settings.columns), number, ())
                return of_source
    return task  # reading it says what is wrong


def _write_blind_items(task: FeedbackTask, settings: ItemsSettings) -> Sequence[Item]:
    """Write the items without the names of the policies, and the key."""
    paths = [path for path in settings.source.split(",") if path]
    files = dict(zip(policy_names(paths), paths, strict=True))
    sources = {}
    for name, path in files.items():
        check_file(path)
        of_source = _task_of_source(task, settings, path)
        sources[name] = read_items(of_source, path, settings.prompts, settings.columns)
    items, key = blind_items(task, sources, files, settings.n, settings.seed)
    check_key_is_free(key_path(settings.out), key)
    write_json(key_path(settings.out), key.model_dump())
    write_text(settings.out, rows_text(item_json(task, item) for item in items))
    firsts = Counter(entry.policies[0] for entry in key.items.values())
    first = ", ".join(f"{name} {count}" for name, count in sorted(firsts.items()))
    prompts = len({entry.prompt for entry in key.items.values()})
    print(f"{settings.out}: {counted(len(items), 'item')} of {counted(prompts, 'prompt')}")
    print(f"  first output by {first}")
    print(f"{key_path(settings.out)}: the policies of the items. Keep it from annotators")
    return items
