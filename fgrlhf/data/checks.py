"""Checks shared by the readers of training files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fgrlhf.errors import UserError, first_problems

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


def refuse_rows(source: str | Path, problems: Sequence[str], use: str = "trained on") -> None:
    """Raise a `UserError` with the first problems of a training file, if there are any.

    Args:
      source: the file.
      problems: one line for each malformed row.
      use: what the rows cannot be used for, to end the sentence "FILE cannot be ...".
    """
    if problems:
        raise UserError("\n  ".join([f"{source} cannot be {use}:", *first_problems(problems)]))
