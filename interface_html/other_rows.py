"""Files of other forms than a task's items have, each with the command that makes rows of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError
from fgrlhf.data.rows import PROMPT, PROMPT_NAMES, Columns
from interface_html.row_format import RowFormat
from interface_html.tasks import FeedbackTask

TABLES = (".tsv", ".csv")
OUTPUT_KEYS = {"response", "responses"}
OTHER_SOURCES = "docs/data_formats.md lists what `data import` and `data convert` read"


def check_file(path: str | Path) -> None:
    """Raise `UserError` for a table, with the commands that make rows of one of MQM."""
    if Path(path).suffix.lower() not in TABLES:
        return
    raise UserError(
        f"{path} is a table, and items are made of JSON rows. For a table of MQM:\n"
        f"  fgrlhf data import {path} judgements.jsonl from=mqm\n"
        "  fgrlhf data convert judgements.jsonl rows.jsonl format=judgements"
        " 'columns={prompt: source, source: source}'\n"
        f"Then give rows.jsonl. {OTHER_SOURCES}"
    )


def check_rows(task: FeedbackTask, path: str | Path, rows: Sequence[Any], columns: Columns) -> None:
    """Raise `UserError` if all rows are pairs, prompts with an answer, or samples of another task.

    So is a file whose rows have the prompt under another name, which `columns` does not tell.

    Only for tasks with the default format. A file with some rows of the task has the messages
    about its other rows.
    """
    dicts = [row for row in rows if isinstance(row, dict)]
    if not isinstance(task.format, RowFormat) or not dicts or len(dicts) < len(rows):
        return
    keys = set.intersection(*map(set, dicts))
    if any(OUTPUT_KEYS & set(row) for row in dicts) or columns:
        names = [name for name in PROMPT_NAMES if name in keys]
        if names and PROMPT not in columns and not any(PROMPT in row for row in dicts):
            raise UserError(
                f"{path} has rows without `{PROMPT}`, the text at the top of the page. If it is"
                f" under `{names[0]}`:\n"
                f"  fgrlhf feedback items {task.schema.task} source={path}"
                f" columns.{PROMPT}={names[0]} out=items.json"
            )
        return
    needed = f"while the task {task.schema.task} needs prompt and response or responses"
    convert = f"fgrlhf data convert {path} rows.jsonl"
    if {"chosen", "rejected"} <= keys:
        raise UserError(
            f"{path} has pairs {{chosen, rejected}}, {needed}. Make rows of them:\n"
            f"  {convert} format=comparisons\n"
            "Then give rows.jsonl"
        )
    if "predictions" in keys:
        raise UserError(
            f"{path} has samples of another task (with {', '.join(sorted(keys))}), {needed}: name"
            " that task"
        )
    texts = [key for key in dicts[0] if key in keys - {"id"} and _are_texts(dicts, key)]
    if len(texts) == 2 and "prompt" not in texts:
        prompt, completion = texts
        raise UserError(
            f"{path} has rows {{{prompt}, {completion}}}, {needed}. To judge the second of them:\n"
            f"  {convert} format=demonstrations columns.prompt={prompt}"
            f" columns.completion={completion}\n"
            "Then give rows.jsonl. To judge a policy's answers, sample it with `fgrlhf generate`"
        )


def _are_texts(rows: Sequence[dict[str, Any]], key: str) -> bool:
    return all(isinstance(row[key], str) for row in rows)
