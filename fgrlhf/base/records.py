"""The reader of all data: JSON values become typed, frozen records, and what is wrong is named.

A format is a subclass of `Record`, a pydantic model. Its fields are the keys, their types and
validators say what a value may be. `read` makes a record of a JSON value, or raises a `RowError`
with the key and the reason. `read_each` does so for the rows of a file and collects what is wrong;
`refuse_rows` raises one `DataError` with file, row, key, reason and way out. `read_record` and
`read_records` read whole files.

Keys are paths such as `spans[2].end`. Rows are counted from 0, lines of a file from 1.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeGuard, TypeVar, cast, overload

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from fgrlhf.base.errors import UserError, first_problems, shorten
from fgrlhf.base.files import numbered_jsonl, read_json

Item = TypeVar("Item")
RowName = TypeVar("RowName", bound=int | str)  # the number of a row, or its name
Complaint = tuple[str, str]  # key, reason

SAME_IN_MANY = 5  # rows from which on the same problem is one line
BLANK = "must be a text that is not empty"
CORRECT = "Correct or remove these rows."


# ---- words ---------------------------------------------------------------------------------------

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


def not_a(kind: type, value: Any) -> str:
    """The reason for a value of the wrong type: `must be a text, it is null`."""
    needed = "a whole number" if kind is int else _TYPE_NAMES[kind]
    return f"must be {needed}, it is {type_name(value)}"


def shown(value: Any) -> str:
    """`repr(value)` for a reason, cut to about 80 characters. Never raises."""
    try:
        return shorten(repr(value), 80)
    except (ValueError, RecursionError):  # thousands of digits, or thousands of nested lists
        return f"{type_name(value)} too large to show"


def text_problem(value: Any, may_be_blank: bool = False) -> str | None:
    """Why a tokenizer cannot read `value`; None if it can.

    JSON can contain half of a surrogate pair (`"\\ud83d"`), which is not a character: no tokenizer
    can read it, and it cannot be encoded as UTF-8.
    """
    if not isinstance(value, str):
        return not_a(str, value)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            return (
                f"character {error.start} is half of a surrogate pair"
                f" (\\u{ord(value[error.start]):04x}), which is not a character"
            )
    return None if may_be_blank or value.strip() else BLANK


# ---- records -------------------------------------------------------------------------------------


class Record(BaseModel):
    """Base of every format of a JSON object. Values are not converted; other keys are ignored."""

    model_config = ConfigDict(
        strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )


def _any_text(value: str) -> str:
    problem = text_problem(value, may_be_blank=True)
    if problem is not None:
        raise ValueError(problem)
    return value


def _text(value: str) -> str:
    problem = text_problem(value)
    if problem is not None:
        raise ValueError(problem)
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        raise ValueError(not_a(float, value))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


@dataclass(frozen=True)
class _Choice:
    names: tuple[str, ...]

    def __call__(self, value: str) -> str:
        if value not in self.names:
            raise ValueError(f"{shown(value)} is none of {', '.join(self.names)}")
        return value


def one_of(names: Iterable[str]) -> Any:
    """The type of a text that is one of these names. `Literal` is that of names in the code."""
    return Annotated[str, AfterValidator(_Choice(tuple(names)))]


AnyText = Annotated[str, AfterValidator(_any_text)]  # may be blank
Text = Annotated[str, AfterValidator(_text)]
Number = Annotated[float, BeforeValidator(_number)]  # true is 1, false is 0
_Each = TypeVar("_Each")
ABSENT: Any = None  # the default of a key that a row may lack, but that must not be null
Listed = Annotated[tuple[_Each, ...], Field(strict=False)]  # a JSON list, as a tuple


class RowError(ValueError):
    """A row does not fit its format: the key, as in the user's file, and the reason.

    Args:
      missing: names of the format that the row needs and does not have.
    """

    def __init__(self, key: str, reason: str, missing: Sequence[str] = ()):
        self.key = key
        self.reason = reason
        self.missing = tuple(missing)
        self.complaints: tuple[Complaint, ...] = ((key, reason),)
        super().__init__(f"`{shorten(key, 80)}`: {reason}" if key else reason)

    @classmethod
    def of(cls, complaints: Iterable[Complaint]) -> "RowError":
        """The error of one row with several complaints; its text is about the first of them."""
        complaints = tuple(complaints)
        error = RowError(*complaints[0])
        error.complaints = complaints
        return error


class LeftOutError(RowError):
    """A row that is well formed, but must not be read as one of its format.

    Args:
      what: the name of such rows in counts, in the plural.
    """

    def __init__(self, key: str, reason: str, what: str):
        super().__init__(key, reason)
        self.what = what


@overload
def read(kind: type[Item], value: Any, key: str = "") -> Item: ...
@overload
def read(kind: Any, value: Any, key: str = "") -> Any: ...
def read(kind: Any, value: Any, key: str = "") -> Any:
    """`value` as a record.

    Args:
      kind: a `Record`, a dataclass of pydantic, or another type that it can check.
      key: of the value in its row.

    Raises:
      RowError: it is none; the error has all complaints.
    """
    if is_dataclass(kind) and not isinstance(value, Mapping):
        raise RowError(key, not_a(dict, value))
    try:
        if is_dataclass(kind):
            return cast(Any, kind)(**value)
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise RowError.of(_complaints(error, key)) from None


def complaints(kind: Any, value: Any, key: str = "") -> list[Complaint]:
    """Everything that is wrong with a value; [] if it is of this kind. See `read`."""
    try:
        read(kind, value, key)
    except RowError as error:
        return list(error.complaints)
    return []


def key_problems(
    owner: Mapping[str, Any], prefix: str, kinds: Mapping[str, Any]
) -> list[Complaint]:
    """Whether an object has these keys, with values of these kinds. Others are not looked at.

    Args:
      prefix: what precedes the keys in complaints, such as `feedback.`.
      kinds: key -> a type.
    """
    problems: list[Complaint] = []
    for key, kind in kinds.items():
        if key in owner:
            problems += complaints(kind, owner[key], prefix + key)
        else:
            problems.append((prefix + key, "missing"))
    return problems


def unknown_key_problems(
    owner: Mapping[str, Any], prefix: str, keys: Sequence[str]
) -> list[Complaint]:
    """A complaint for each key of an object that is not one of `keys`."""
    return [(f"{prefix}{key}", "is not known") for key in owner if key not in keys]


@lru_cache(maxsize=1000)  # the choices of a task's schema are types too
def _adapter(kind: Any) -> TypeAdapter:
    has_config = isinstance(kind, type) and issubclass(kind, BaseModel)
    return TypeAdapter(kind, config=None if has_config else Record.model_config)


_NEEDED: dict[str, type] = {
    "string_type": str,
    "list_type": list,
    "tuple_type": list,
    "dict_type": dict,
    "model_type": dict,
    "float_type": float,
    "bool_type": bool,
}


def _complaints(error: ValidationError, key: str) -> list[Complaint]:
    found: list[Complaint] = []
    for problem in error.errors(include_url=False):
        place = joined(key, *(part for part in problem["loc"] if part != "[key]"))
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, RowError):  # of a validator of the whole object
            found += [(joined(place, inner), reason) for inner, reason in cause.complaints]
        else:
            found.append((place, _reason(problem)))
    return found


def _reason(problem: Mapping[str, Any]) -> str:
    """The reason of one of pydantic's errors, in the words of this module."""
    rule, value = problem["type"], problem["input"]
    if rule == "missing":
        return "missing"
    if rule in ("extra_forbidden", "unexpected_keyword_argument"):
        return "unknown key"
    if rule == "value_error":
        return str(problem["ctx"]["error"])
    if rule == "float_type" and is_whole(value):
        return "must be a finite number"
    if rule == "int_type":
        return f"must be a whole number, it is {_value_or_type(value)}"
    if rule in _NEEDED:
        return not_a(_NEEDED[rule], value)
    if rule == "literal_error":
        return f"must be {problem['ctx']['expected'].replace(chr(39), '')}, it is {shown(value)}"
    message = problem["msg"].replace("Input should be", "must be")
    return f"{message[:1].lower()}{message[1:]}, it is {shown(value)}"


def _value_or_type(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return shown(value) if is_number else type_name(value)


def joined(*parts: str | int) -> str:
    """A path of keys and numbers: `spans[2].end` for "spans", 2 and "end"."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path and part and not part.startswith("[") else part
    return path


# ---- single values -------------------------------------------------------------------------------
# For rows of other projects, whose keys depend on each other. A `Record` states the rest.


def _found(value: Any) -> str:
    """What a value of the wrong type is. Readers get None for a key that a row does not have."""
    return "null or missing" if value is None else type_name(value)


def check_text(key: str, value: Any, may_be_blank: bool = False) -> str:
    """Return `value` if it is a text. Raises `RowError`, which names `key`, if it is not."""
    if value is None:
        raise RowError(key, f"must be a text, it is {_found(value)}")
    problem = text_problem(value, may_be_blank)
    if problem is not None:
        raise RowError(key, problem)
    return value


def check_texts(key: str, value: Any, may_be_blank: bool = False) -> tuple[str, ...]:
    """Return `value` if it is a list of texts. Raises `RowError`, which names the wrong element."""
    items = check_list(key, value)
    return tuple(check_text(f"{key}[{i}]", item, may_be_blank) for i, item in enumerate(items))


def check_list(key: str, value: Any) -> list[Any]:
    """Return `value` if it is a list. Raises `RowError` if it is not."""
    if not isinstance(value, list):
        raise RowError(key, f"must be a list, it is {_found(value)}")
    return value


def check_object(key: str, value: Any) -> Mapping[str, Any]:
    """Return `value` if it is an object. Raises `RowError` if it is not."""
    if not isinstance(value, Mapping):
        raise RowError(key, f"must be an object, it is {_found(value)}")
    return value


def check_number(key: str, value: Any) -> float:
    """`value` as a finite number; true is 1, false is 0. Raises `RowError` if it is not one."""
    if value is None:
        raise RowError(key, f"must be a number, it is {_found(value)}")
    try:
        return _number(value)
    except ValueError as error:
        raise RowError(key, str(error)) from None


def check_whole(key: str, value: Any) -> int:
    """Return `value` if it is a whole number. Raises `RowError` if it is not."""
    if not is_whole(value):
        found = _found(value) if value is None else _value_or_type(value)
        raise RowError(key, f"must be a whole number, it is {found}")
    return value


def check_place(key: str, value: Any, below: int, bound: str) -> int:
    """Return `value` if it is a whole number from 0 to `below` - 1.

    Args:
      bound: explains the range in messages.

    Raises:
      RowError: it is not such a number.
    """
    if not 0 <= check_whole(key, value) < below:
        raise RowError(key, f"is {shown(value)}, but {bound}")
    return value


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number. True and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


# ---- many rows, and files ------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """What is wrong with a row, or with a part of it.

    Args:
      row: its number or name; None: the file is one record.
      key: the part, as a path in the file's own keys, such as `spans[2].end`.
      reason: why, without a full stop.
      place: what is counted: rows from 0, or lines of the file from 1.
    """

    row: int | str | None
    key: str
    reason: str
    file: str = ""
    place: str = "row"

    def __str__(self) -> str:
        return self.line()

    def line(self, rows: Sequence[int | str] = ()) -> str:
        """The problem as a line, which may be about several `rows`."""
        what = f"`{shorten(self.key, 80)}`: {self.reason}" if self.key else self.reason
        if self.row is None:
            return what
        named = f"{self.place}s {first_rows(rows)}" if rows else f"{self.place} {self.row}"
        return f"{named}, {what}" if self.key else f"{named}: {what}"


class DataError(UserError):
    """Malformed rows. `problems` has all of them; the message lists the first ones of each file.

    A problem that many rows have is one line, which names the first of these rows.

    Args:
      use: what the rows cannot be used for, to end the sentence "FILE cannot be ...".
      way_out: what to do, as the last line.
    """

    def __init__(self, problems: Sequence[Problem], use: str = "read", way_out: str = CORRECT):
        self.problems = tuple(problems)
        blocks = []
        for file in dict.fromkeys(problem.file for problem in problems):
            of_file = [problem for problem in problems if problem.file == file]
            counts_rows = any(
                problem.place == "row" and is_whole(problem.row) for problem in of_file
            )
            note = " (rows count from 0)" if counts_rows else ""
            head = f"{shorten(file)} cannot be {use}{note}:"
            blocks.append("\n  ".join([head, *first_problems(_lines(of_file))]))
        super().__init__("\n".join([*blocks, way_out]).rstrip())


def refuse_rows(problems: Sequence[Problem], use: str = "read", way_out: str = CORRECT) -> None:
    """Raise a `DataError` with these problems, if there are any."""
    if problems:
        raise DataError(problems, use, way_out)


def _lines(problems: Sequence[Problem]) -> list[str]:
    """A line for each problem, or one for all rows with the same problem if they are many."""
    rows_of: dict[Problem, list[int | str]] = {}
    for problem in problems:
        if problem.row is not None:
            rows_of.setdefault(replace(problem, row=0), []).append(problem.row)
    lines = []
    for problem in problems:
        rows = rows_of.get(replace(problem, row=0), [])
        if len(rows) < SAME_IN_MANY:
            lines.append(problem.line())
        elif problem.row == rows[0]:
            lines.append(problem.line(rows))
    return lines


def first_rows(rows: Sequence[int | str]) -> str:
    """The first of many rows and the number of the others: `3, 4, 7, 8 and 1,200 more`."""
    named = rows[: SAME_IN_MANY - 1]
    return f"{', '.join(map(str, named))} and {len(rows) - len(named):,} more"


def read_each(
    rows: Iterable[tuple[RowName, Any]],
    read_row: Callable[[RowName, Any], Item],
    file: str | Path = "",
    place: str = "row",
) -> tuple[list[Item], list[Problem]]:
    """The items in rows, and what is wrong with the others.

    Args:
      rows: (number, value) pairs.
      read_row: (number, object) -> the item in it. Raises `RowError`.
    """
    items: list[Item] = []
    problems: list[Problem] = []
    for number, row in rows:
        try:
            if not isinstance(row, Mapping):
                raise RowError("", f"must be an object, it is {type_name(row)}")
            items.append(read_row(number, row))
        except RowError as error:
            for key, reason in error.complaints:
                problems.append(Problem(number, key, reason, str(file), place))
    return items, problems


def read_all(
    kind: type[Item], rows: Sequence[Any], file: str | Path, use: str, way_out: str = CORRECT
) -> list[Item]:
    """The rows of a file as records. Raises a `DataError` with all that is wrong with them."""
    items, problems = read_each(enumerate(rows), lambda _, row: read(kind, row), file)
    refuse_rows(problems, use, way_out)
    return items


def read_record(path: str | Path, kind: type[Item], use: str, way_out: str) -> Item:
    """The record that a JSON file holds.

    Args:
      use, way_out: of a file that is none, see `DataError`.

    Raises:
      UserError: the file is missing, is not JSON, or is not such a record; all mistakes are listed.
    """
    try:
        return read(kind, read_json(path))
    except RowError as error:
        problems = [Problem(None, *complaint, str(path)) for complaint in error.complaints]
        raise DataError(problems, use, way_out) from None
    except UserError as error:
        raise UserError(f"{error}. {way_out}") from None


def read_records(path: str | Path, kind: type[Item], use: str, way_out: str) -> list[Item]:
    """The records in the lines of a JSON lines file. Raises `UserError` as `read_record` does."""
    records, problems = read_each(
        numbered_jsonl(path), lambda _, row: read(kind, row), path, place="line"
    )
    refuse_rows(problems, use, way_out)
    return records
