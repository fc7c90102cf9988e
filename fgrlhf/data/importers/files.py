"""Reads the files of published data sets: tables, and JSON rows.

An importer is a function (path, report) -> items. It calls `read_objects`, or `table` and
`read_each`, with a function that turns one row into an item, and the checks below for the values of
the row. `registry.py` lists all importers.
"""

import ast
import csv
import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fgrlhf.base import records
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json, read_text
from fgrlhf.base.records import RowError, check_number, check_text, type_name
from fgrlhf.data.importers.report import Report
from fgrlhf.data.label_studio_project import RESPONSE_KEYS as TEXT_KEYS
from fgrlhf.data.read import read_rows
from fgrlhf.data.rows import PROMPT, PROMPT_NAMES
from fgrlhf.data.shapes import PromptText, conversation_prompt, messages_of
from fgrlhf.runs.progress import progress_bar
from fgrlhf.text_types import Prompt

Item = TypeVar("Item")

TAB = "\t"
COMMENT = "comment"  # the label of a free text about a whole response
MOST_CELL = 1 << 27  # characters of one cell; the csv module's default of 131,072 is too few


def table(
    path: str | Path,
    needed: Sequence[str],
    report: Report,
    delimiter: str = ",",
    quoted: bool = True,
    optional: Sequence[str] = (),
) -> list[dict[str, str]]:
    """The rows of a table with a header. Cells of columns that are not read are counted as lost.

    A row may have blank cells after its last column. It may lack its last cell if that column is
    not needed; the cell is blank then.

    Args:
      needed: columns that the table must have.
      delimiter: the character between two cells.
      quoted: whether `"` encloses cells. In some tables it is a character like any other.
      optional: columns that are read if the table has them.

    Raises:
      UserError: the file cannot be read, lacks a column or has one twice, or a row has too many or
        too few cells.
    """
    columns, rows = _parse_table(path, needed, optional, delimiter, quoted)
    for number, row in enumerate(rows):
        _check_cells(path, number, row, columns, needed)
    unread = [name for name in columns if name.strip() and name not in (*needed, *optional)]
    lost = 0
    for row in rows:
        lost += sum(1 for name in unread if row[name].strip())
    if lost:
        report.losses[f"cells of columns that are not read ({shorten(', '.join(unread))})"] += lost
    return rows


def _parse_table(
    path: str | Path,
    needed: Sequence[str],
    optional: Sequence[str],
    delimiter: str,
    quoted: bool,
) -> tuple[Sequence[str], list[dict[Any, Any]]]:
    """The columns and the rows of a table, as `csv.DictReader` reads them.

    A missing cell is None, and cells after the last column are a list under the key None.
    """
    text = read_text(path)
    rows: list[dict[Any, Any]] = []
    default_limit = csv.field_size_limit(MOST_CELL)
    try:
        # strict: otherwise an unmatched quote would merge all rows up to the next one into one cell
        reader = csv.DictReader(
            io.StringIO(text, newline=""),
            delimiter=delimiter,
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
            strict=True,
        )
        columns = list(reader.fieldnames or [])
        _check_header(path, columns, needed, optional)
        for row in reader:
            rows.append(row)
    except csv.Error as error:
        raise UserError(
            f"{path}, row {len(rows)}: is not a row of a table: {shorten(error)}. A cell that"
            ' begins with `"` must end with `"`, and those inside it must be doubled'
        ) from None
    finally:
        csv.field_size_limit(default_limit)
    return columns, rows


def _check_header(
    path: str | Path, columns: Sequence[str], needed: Sequence[str], optional: Sequence[str]
) -> None:
    """Raise `UserError` if a needed column is missing, or a column that is read is there twice."""
    missing = [name for name in needed if name not in columns]
    if missing:
        raise UserError(
            f"{path} has no column {', '.join(missing)}: it has"
            f" {shorten(', '.join(columns) or 'no columns', 200)}. Choose another from=..., or"
            " download the file again"
        )
    read_columns = dict.fromkeys((*needed, *optional))
    repeated = [name for name in read_columns if columns.count(name) > 1]
    if repeated:
        raise UserError(
            f"{path} has the column {', '.join(repeated)} twice, so one of them would be lost:"
            " remove it, or give it another name"
        )


def _check_cells(
    path: str | Path,
    number: int,
    row: dict[Any, Any],
    columns: Sequence[str],
    needed: Sequence[str],
) -> None:
    """Give a row one text for each column. Raises `UserError` if it has other cells."""
    extra_cells = row.pop(None, [])
    missing = [name for name in columns if row[name] is None]
    last_column = columns[-1]
    if missing == [last_column] and last_column not in needed:
        row[last_column] = ""
        missing = []
    if missing or any(cell.strip() for cell in extra_cells):
        raise UserError(
            f"{path}, row {number}: has another number of cells than the header's"
            f" {len(columns)}. Download the file again"
        )


def read_objects(
    path: str | Path, read: Callable[[int, Mapping[str, Any], Report], Item | None], report: Report
) -> list[Item]:
    """The items in the rows of a JSON, JSON lines or Parquet file. See `read_each`."""
    return read_each(read_rows(path), read, report)


def read_each(
    rows: Sequence[Any],
    read: Callable[[int, Mapping[str, Any], Report], Item | None],
    report: Report,
) -> list[Item]:
    """The items in rows. Rows without the structure of the format are reported as malformed.

    Args:
      read: (number from 0, row, report) -> an item. It returns None for a row that is left out,
        after it has reported this, and raises `RowError` for a malformed row.
    """
    items, malformed = records.read_each(
        numbered(rows, report), lambda number, row: read(number, row, report)
    )
    report.malformed += malformed
    return [item for item in items if item is not None]


def numbered(rows: Sequence[Item], report: Report) -> Iterator[tuple[int, Item]]:
    """The rows with their numbers, from 0. They are counted, and a bar shows the progress."""
    bar = progress_bar(len(rows), "importing", "row")
    for number, row in enumerate(rows):
        report.rows += 1
        yield number, row
        bar.update()
    bar.close()


def list_in(key: str, text: str) -> list[Any]:
    """A list in a cell of a table, in JSON or as Python prints it; [] for a blank cell.

    Raises:
      RowError: the cell has no list.
    """
    if not text.strip():
        return []
    try:
        value = parse_json(text)
    except ValueError:
        try:
            value = ast.literal_eval(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise RowError(key, f"is not a list: {shorten(repr(text), 60)}") from None
    if not isinstance(value, list):
        raise RowError(key, f"must be a list, it is {type_name(value)}")
    return value


def whole_number(key: str, value: Any) -> int:
    """A whole number, which may also be a text or 3.0. Raises `RowError` for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return int(_plain_number(str(value)))
    except ValueError:
        reason = f"must be a whole number, it is {shorten(repr(value), 40)}"
        raise RowError(key, reason) from None


def _plain_number(text: str) -> str:
    """The text. Raises `ValueError` for digits that only Python reads: `1_0`, other scripts'."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def any_number(key: str, value: Any) -> float:
    """A finite number, which may also be a text. Raises `RowError` for anything else."""
    if isinstance(value, str):
        try:
            value = float(_plain_number(value))
        except ValueError:
            reason = f"must be a number, it is {shorten(repr(value), 40)}"
            raise RowError(key, reason) from None
    return check_number(key, value)


def optional_text(key: str, value: Any) -> str | None:
    """A text, or None for null and blank ones. Raises `RowError` for anything else."""
    if value is None:
        return None
    text = check_text(key, value, may_be_blank=True)
    return text if text.strip() else None


def row_id(value: Any, number: int) -> str:
    """The id of a row as a text; the number of the row if it has no id, or a blank one."""
    text = "" if value is None else str(value)
    return text if text.strip() else str(number)


def prompt_key(place: str, row: Mapping[str, Any], judged: str) -> str:
    """The key of a row's prompt: `prompt`, or else the only one of `PROMPT_NAMES` with a text.

    Args:
      place: of the row's keys, for messages, such as "data.".
      row: texts by their keys.
      judged: the key of the judged text.

    Raises:
      RowError: several have a text.
    """
    if row.get(PROMPT):
        return PROMPT
    given = []
    for name in PROMPT_NAMES:
        if name != judged and isinstance(row.get(name), str) and row[name].strip():
            given.append(name)
    if len(given) > 1:
        names = " or ".join(f"`{name}`" for name in given)
        raise RowError(
            f"{place}{PROMPT}",
            f"missing, and it could be {names}: rename one of them to `{PROMPT}` in the file",
        )
    return given[0] if given else PROMPT


def shown_prompt(key: str, prompt_id: str, value: Any, meta: Mapping[str, Any]) -> Prompt:
    """The prompt that a page showed: a text, a conversation, or none.

    Args:
      key: of the prompt, for messages.
      value: the prompt.

    Raises:
      RowError: it is neither.
    """
    if not isinstance(value, list) or not value:
        return text_prompt(prompt_id, optional_text(key, value or None) or "", meta)
    prompt = conversation_prompt(key, messages_of(key, value))
    return Prompt(prompt_id, prompt.text, meta=meta, messages=prompt.messages)


def text_prompt(prompt_id: str, text: str, meta: Mapping[str, Any]) -> Prompt:
    """The prompt in a text, which may be a dialog."""
    return Prompt(prompt_id, text, meta=meta, messages=PromptText.of(text).messages)


# ---- annotation tools ----------------------------------------------------------------------------


def user_name(value: Any) -> str | None:
    """The name of a user, who may be an object; None if the export does not name one."""
    if isinstance(value, Mapping):
        value = value.get("email") or value.get("id")
    name = "" if value is None else str(value)
    return name if name.strip() else None


def quoted_keys(keys: Collection[str]) -> str:
    """The keys for a message; `none` without quotes if there are none."""
    return ", ".join(f"`{key}`" for key in keys) or "none"


def without_prompts(keys: list[str]) -> list[str]:
    """The keys that are not names of prompts; all of them if there are no others."""
    return [key for key in keys if key not in PROMPT_NAMES] or keys


def judged_text_key(
    place: str, keys: Collection[str], others: list[str], what: str, way_out: str
) -> str:
    """The key of the judged text: `response`, `text`, or the only other one.

    Args:
      place: of the texts, for the message, as are `what` is looked for and the `way_out`.
      others: the keys of what else may be a text.

    Raises:
      RowError: several could be it, or none.
    """
    for key in TEXT_KEYS:
        if key in keys:
            return key
    shown = without_prompts(others)
    if len(shown) != 1:
        names = " or ".join(TEXT_KEYS)
        raise RowError(place, f"has no text under {names}, and not one other {what}. {way_out}")
    return shown[0]
