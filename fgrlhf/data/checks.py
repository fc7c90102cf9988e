"""Checks shared by the readers of training files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, first_problems

SAME_IN_MANY = 5  # rows from which on the same problem is one line

_TYPE_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def type_name(value: Any) -> str:
    """The JSON name of a value's type, with an article: `a list`, `null`."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def text_problem(value: Any, may_be_blank: bool = False) -> str | None:
    """Why a tokenizer cannot read `value`; None if it can.

    JSON can contain half of a surrogate pair (`"\\ud83d"`), which is not a character: no tokenizer
    can read it, and it cannot be encoded as UTF-8.
    """
    if not isinstance(value, str):
        return f"must be a text, it is {type_name(value)}"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        return (
            f"character {error.start} is half of a surrogate pair"
            f" (\\u{ord(value[error.start]):04x}), which is not a character"
        )
    if not may_be_blank and not value.strip():
        return "must be a text that is not empty"
    return None


def refuse_rows(
    source: str | Path, problems: Sequence[str], use: str = "trained on", way_out: str = ""
) -> None:
    """Raise a `UserError` with the first problems of a training file, if there are any.

    Args:
      source: the file.
      problems: one line for each malformed row, or for rows with the same problem (`by_problem`).
      use: what the rows cannot be used for, to end the sentence "FILE cannot be ...".
      way_out: what to do, as the last line.
    """
    if problems:
        lines = "\n  ".join([f"{source} cannot be {use}:", *first_problems(problems)])
        raise UserError(f"{lines}\n{way_out}".rstrip())


def by_problem(problems: Sequence[tuple[int | str, str]]) -> list[str]:
    """A line for each row, or one for all rows with the same problem if they are many.

    Args:
      problems: (row, what follows it in the line), such as (3, ", `prompt`: missing").
    """
    rows_of: dict[str, list[int | str]] = {}
    for row, problem in problems:
        rows_of.setdefault(problem, []).append(row)
    lines = []
    for row, problem in problems:
        rows = rows_of[problem]
        if len(rows) < SAME_IN_MANY:
            lines.append(f"row {row}{problem}")
        elif row == rows[0]:
            lines.append(f"rows {first_rows(rows)}{problem}")
    return lines


def first_rows(rows: Sequence[int | str]) -> str:
    """The first of many rows and the number of the others: `3, 4, 7, 8 and 1,200 more`."""
    named = rows[: SAME_IN_MANY - 1]
    return f"{', '.join(map(str, named))} and {len(rows) - len(named):,} more"
