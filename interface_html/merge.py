"""Merge the feedback of several rounds into one file, and record where each row came from.

    fgrlhf feedback merge NAME files=round1.json,round2.json out=train_feedback.json

Rows about the same texts become one row. If both rounds judged them, the later file counts: its
annotation replaces the earlier annotation, its comparison the earlier comparison. Texts with other
sources are other texts, because evidence names sentences of the sources. Files are listed from the
first round to the last. `<out>.rounds.json` has, for each row, the file and the row number
of its annotation and of its comparison. Rows about other texts with the id of an earlier row, such
as new responses to the same prompt, get a new id: `7-2` for the second row with the id `7`.
"""

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import count

from pydantic import Field

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import write_json, write_text
from fgrlhf.configs.strict import FilePath
from interface_html.decisions import merged_decided
from interface_html.format import FEEDBACK_KEYS, Item
from interface_html.items import read_items, rows_text
from interface_html.outputs import OutputSettings
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

# for the feedback in each of FEEDBACK_KEYS, its file and the number of its row
Origin = dict[str, dict[str, str | int]]
Texts = tuple[str, ...]


class MergeSettings(OutputSettings):
    """The files to merge."""

    task: str = Field(description=TASK_HELP)
    files: str = Field(description="feedback files, separated by commas, the first round first")
    out: FilePath = Field(description="the feedback file to write")


@dataclass(frozen=True)
class Merged:
    """The merged rows.

    Attributes:
      items: in the order of their first appearance.
      origins: where the feedback of each item came from.
      replaced: number of judgements that a later file replaced.
    """

    items: list[Item]
    origins: list[Origin]
    replaced: int


def merge_items(task: FeedbackTask, rounds: Sequence[tuple[str, Sequence[Item]]]) -> Merged:
    """Merge the items of several files. See the module's docstring.

    Args:
      rounds: (file, its items), from the first round to the last.

    Raises:
      UserError: two rows of a file have the same kind of judgement of an item.
    """
    merged: dict[Texts, Item] = {}
    origins: dict[Texts, Origin] = {}
    replaced = 0
    ids: set[str] = set()
    for file, items in rounds:
        # of this round: a file that is listed twice does not contradict itself
        first_rows: dict[tuple[Texts, str], int] = {}
        for number, item in enumerate(items):
            texts = _texts(task, item)
            earlier = merged.get(texts)
            feedback = {key: item.row[key] for key in FEEDBACK_KEYS if key in item.row}
            for key in feedback:
                first = first_rows.setdefault((texts, key), number)
                if first != number:
                    raise UserError(_judged_twice(file, first, number))
            if earlier is None:
                merged[texts] = Item(new_id(item.id, ids), item.row)
                ids.add(merged[texts].id)
            else:
                replaced += sum(key in earlier.row for key in feedback)
                decided = merged_decided(task.schema, earlier.row, item.row)
                merged[texts] = Item(earlier.id, {**earlier.row, **feedback, **decided})
            origin = origins.setdefault(texts, {})
            for key in feedback:
                origin[key] = {"file": file, "row": number}
    return Merged(list(merged.values()), list(origins.values()), replaced)


def _texts(task: FeedbackTask, item: Item) -> Texts:
    """What makes two rows the same item: the title, the texts to judge and the sources."""
    return (*task.content(item), json.dumps(task.schema.sources(item.row)))


def new_id(name: str, taken: Set[str]) -> str:
    """The id itself, or with the first free number after it: files have each id once."""
    candidates = (f"{name}-{number}" if number > 1 else name for number in count(1))
    return next(candidate for candidate in candidates if candidate not in taken)


def _judged_twice(file: str, first: int, second: int) -> str:
    return (
        f"{file}: rows {first} and {second} judge the same item, but a merged file has one row for"
        " each item. Export the file with policy=latest, majority or adjudicated, not with"
        " policy=all"
    )


def merge(settings: MergeSettings) -> int:
    """Write the merged file. Returns the number of its rows.

    Raises:
      DataError: a file has malformed rows.
      UserError: a file cannot be read, or there is only one.
    """
    files = settings.files.split(",")
    if len(files) < 2:
        raise UserError(f"files={settings.files}: give two or more files, separated by commas")
    task = feedback_of(settings.task)
    merged = merge_items(task, [(file, read_items(task, file)) for file in files])
    rows = [task.format.feedback_row(task.schema, item) for item in merged.items]
    write_text(settings.out, rows_text(rows))
    write_json(f"{settings.out}.rounds.json", merged.origins)
    print(
        f"{settings.out}: {counted(len(rows), 'row')} of {len(files)} files;"
        f" {counted(merged.replaced, 'judgement')} replaced by a later file"
    )
    return len(rows)
