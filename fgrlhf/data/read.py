"""Rows of a file or of a published data set, whatever its format.

    rows.json        one JSON array of objects, or JSON lines
    rows.jsonl       JSON lines: one object on each line; blank lines are skipped
    rows.json.gz     either of them, compressed; also rows.jsonl.gz
    rows.parquet     a Parquet file: one object for each row, with the columns as keys
    hub:org/name     split `train` of a data set of the Hugging Face hub; also hub:org/name:split
                     and hub:org/name:config:split

fgrlhf/data/tables.py reads Parquet files and data sets.
"""

import difflib
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import (
    BYTE_ORDER_MARK,
    hint_at_packed,
    is_same_file,
    parse_json,
    read_text,
    write_json,
    write_jsonl,
)
from fgrlhf.base.records import type_name

HUB = "hub:"
SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".parquet")
BLOCK = 1 << 20
MOST_NAMES = 1_000  # files of a folder that are compared with the name of a missing one
# Highest ratio of unpacked to compressed size. Rows of text have a ratio of 3 to 10.
MOST_GROWTH = 200
FREE_GROWTH = 16 * BLOCK  # unpacked bytes that are allowed at any ratio


def read_rows(source: str | Path) -> list[Any]:
    """The rows of a file or data set, in order. The suffix determines the file's format.

    Rows are JSON values; fgrlhf/data/formats.py checks them. In Parquet files and data sets, dates
    and decimal numbers become text, and binary values become null.

    Raises:
      UserError: the source does not exist, cannot be read, has an unknown suffix, or has no rows.
    """
    name = str(source)
    if name.startswith(HUB):
        from fgrlhf.data.tables import read_data_set  # only such sources need it

        rows = read_data_set(name.removeprefix(HUB))
    else:
        rows = _READERS[_suffix(name)](Path(source))
    if not rows:
        raise _no_rows(name, _EMPTY.get(_suffix(name), "it is empty"))
    return rows


def _no_rows(name: str, reason: str) -> UserError:
    return UserError(f"{shorten(name)} has no rows: {reason}. Give a file with at least one row")


def write_rows(path: str | Path, rows: list[dict[str, Any]]) -> None:
    """Write rows atomically to a .json, .jsonl or .parquet file.

    Raises:
      UserError: the suffix is another one, or a key of a Parquet file has values of different
        types.
    """
    _check_output(path)
    suffix = _suffix(str(path))
    if suffix == ".json":
        write_json(path, rows)
    elif suffix == ".jsonl":
        write_jsonl(path, rows)
    else:
        from fgrlhf.data.tables import write_parquet  # only this format needs it

        write_parquet(Path(path), rows)


def _check_output(path: str | Path) -> None:
    """Raise `UserError` if `write_rows` cannot write a file of this name."""
    name = str(path)
    if name.startswith(HUB) or not name.endswith(WRITTEN):
        raise UserError(f"{path} cannot be written: give a name that ends in {', '.join(WRITTEN)}")


def check_input_and_output(source: str, out: str) -> None:
    """Raise `UserError` if the output cannot be written, or would replace the input."""
    check_not_input(source, out)
    _check_output(out)


def check_not_input(source: str, out: str) -> None:
    """Raise `UserError` if the output, or a file named after it, would replace the input.

    A file is also recognised by another name, such as a link. A database is never replaced, input
    or not, since it may be the only copy of what people have written.
    """
    for suffix in ("", *WRITTEN_BESIDE):
        if not is_same_file(source, out + suffix):
            continue
        fact = f"{shorten(out)} is the input, so it cannot be the output too"
        if suffix:
            fact = f"{shorten(out + suffix)} is the input, but may be written beside {shorten(out)}"
        raise UserError(f"{fact}: name another file")
    if _is_database(out):
        raise UserError(
            f"{shorten(out)} is a database, perhaps of a study, which the output would replace:"
            " name another file"
        )


def check_two_outputs(out: str, other: str) -> None:
    """Raise `UserError` if two outputs of a command are one file, which need not exist yet."""
    if os.path.realpath(out) == os.path.realpath(other) or is_same_file(out, other):
        raise UserError(f"{shorten(other)} cannot be both outputs: name another file for one")


def _is_database(name: str) -> bool:
    try:
        with open(name, "rb") as file:
            return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except (OSError, ValueError):
        return False


# the ends of the names of the files that a command writes beside its output
WRITTEN_BESIDE = (".import.json", ".record.json", ".rounds.json", ".selection.json")
SQLITE_HEADER = b"SQLite format 3\0"

WRITTEN = (".json", ".jsonl", ".parquet")
_EMPTY = {".json": "it is an empty JSON array"}
_NAMED_AS_LINES = "A file of one JSON array needs a name that ends in .json"


IMPORTED = {".ann": "brat", ".xmi": "uima"}  # ends of names -> who reads such files


def _suffix(name: str) -> str:
    """The suffix that determines how a source is read; `hub:` for a data set."""
    if name.startswith(HUB):
        return HUB
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    names = f"a file that ends in {', '.join(SUFFIXES)}, or a data set, hub:org/name"
    if os.path.isdir(name):
        raise UserError(f"{shorten(name)} is a folder: give {names}")
    if name.endswith((".csv", ".tsv")):
        separator = ", sep='\\t'" if name.endswith(".tsv") else ""
        raise UserError(
            f"{shorten(name)} is a table, but rows are JSON or Parquet. `fgrlhf data import` reads"
            " published tables. Convert any other one with pandas:"
            f" read_csv(FILE{separator}).to_json('rows.jsonl', orient='records', lines=True)"
        )
    importer = next((read for end, read in IMPORTED.items() if name.endswith(end)), None)
    if importer is not None:
        names += f". `fgrlhf data import IN OUT from={importer}` reads such files"
    raise UserError(f"the name of {shorten(name)} does not end in a known format: give {names}")


# ---- JSON and JSON lines -------------------------------------------------------------------------


def _read_json(path: Path) -> list[Any]:
    return _json_rows(path, _existing_text(path))


def _read_jsonl(path: Path) -> list[Any]:
    return _json_lines(path, _existing_text(path))


def _read_json_gz(path: Path) -> list[Any]:
    return _json_rows(path, _unpacked_text(path))


def _read_jsonl_gz(path: Path) -> list[Any]:
    return _json_lines(path, _unpacked_text(path))


def _existing_text(path: Path) -> str:
    _check_exists(path)
    return read_text(path)


def _json_rows(path: Path, text: str) -> list[Any]:
    """The rows of a JSON array. A file of JSON lines is often named .json too."""
    if not text.strip():
        raise _no_rows(str(path), "it is empty")
    try:
        rows = parse_json(text, unique_keys=True)
    except ValueError as error:
        extra_data = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"
        if extra_data and text.lstrip().startswith("{"):
            return _json_lines(path, text)
        way_out = ""
        if isinstance(error, json.JSONDecodeError):
            way_out = (
                ". The file must have one JSON array of objects, or one object on each line; it"
                f" starts with `{shorten(text[:60], 40)}`"
            )
        raise UserError(f"{path} is not valid JSON: {shorten(error)}{way_out}") from None
    if not isinstance(rows, list):
        way_out = _rows_inside(path, rows) if isinstance(rows, dict) else ""
        raise UserError(
            f"{path} must hold one JSON array of rows, it holds {type_name(rows)}{way_out}"
        )
    return rows


def _rows_inside(path: Path, value: Mapping[str, Any]) -> str:
    """What to do about a file of one object, which may have the rows under a key."""
    keys = [key for key, rows in value.items() if isinstance(rows, list) and rows]
    keys = [key for key in keys if all(isinstance(row, Mapping) for row in value[key])]
    if len(keys) != 1:
        return ": put it in [ ], or name the file .jsonl"
    key = shorten(keys[0], 40)
    return (
        f". If the rows are those under its key `{key}`, write them to a file of their own, as"
        f" `jq '.[\"{key}\"]' {shorten(path.name, 40)}` does; else put the object in [ ]"
    )


def _json_lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(parse_json(line, unique_keys=True))
        except ValueError as error:
            rest = text.split("\n", number - 1)[-1]
            is_list = text.lstrip().startswith("[")
            raise _wrong_line(path, number, rest, is_list, error) from None
    if len(rows) == 1 and isinstance(rows[0], list):
        raise UserError(f"{path} has one line, which is a list. {_NAMED_AS_LINES}")
    return rows


def _wrong_line(path: Path, number: int, rest: str, is_list: bool, error: ValueError) -> UserError:
    """The error about a line that is not JSON.

    Args:
      rest: this line and those after it.
      is_list: whether the file begins like a JSON array.
    """
    reason = shorten(error)
    if isinstance(error, json.JSONDecodeError):
        reason = f"{error.msg} at character {error.colno}"
    line = rest.partition("\n")[0]
    way_out = f"Every line must be one JSON object; this one is `{shorten(line[:200], 80)}`"
    if _goes_on(rest):
        way_out = (
            "The object goes on in the next lines: write each object on a line of its own, as"
            " `jq -c . FILE` does"
        )
    if is_list:
        way_out = _NAMED_AS_LINES
    return UserError(f"{path}, line {number}: not valid JSON: {reason}. {way_out}")


class Line(NamedTuple):
    """A row of a file of JSON lines.

    Attributes:
      number: of its line, from 1.
      offset: bytes before the line.
      length: bytes of the line.
    """

    number: int
    offset: int
    length: int
    row: Any


def lines_of(path: str | Path) -> Iterator[Line]:
    """The rows of a file of JSON lines one by one, so that they need not fit into memory.

    Raises:
      UserError: a line is not JSON, or there are no rows.
    """
    offset = 0
    is_empty = True
    with open(path, "rb") as file:
        for number, data in enumerate(file, 1):
            try:
                text = data.decode("utf-8").removesuffix("\n")
                text = text if offset else text.removeprefix(BYTE_ORDER_MARK)
                row = parse_json(text, unique_keys=True) if text.strip() else None
            except UnicodeDecodeError:
                raise UserError(
                    f"{path}, line {number}: not UTF-8 text; {hint_at_packed(data)}"
                ) from None
            except ValueError as error:
                rest = (data + file.read(BLOCK)).decode("utf-8", "replace")
                file.seek(0)
                is_list = file.read(BLOCK).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
                raise _wrong_line(Path(path), number, rest, is_list, error) from None
            if text.strip():
                is_empty = False
                yield Line(number, offset, len(data), row)
            offset += len(data)
    if is_empty:
        raise _no_rows(str(path), "it is empty")


def _goes_on(rest: str) -> bool:
    """Whether a text begins with a JSON object of several lines."""
    rest = rest.lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        return False
    return rest.startswith("{") and "\n" in rest[:end]


def _unpacked_text(path: Path) -> str:
    """The text of a compressed file. A decompression bomb is rejected before it fills memory."""
    _check_exists(path)
    blocks = []
    size = 0
    try:
        most = most_unpacked(path)
        with gzip.open(path) as file:
            while block := file.read(BLOCK):
                blocks.append(block)
                size += len(block)
                if size > most:
                    raise UserError(
                        f"{path} unpacks to more than {MOST_GROWTH} times its size, which no text"
                        " does: it is damaged, or made to fill the memory"
                    )
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be unpacked: {shorten(error)}. Fetch the file again"
        ) from None
    try:
        return b"".join(blocks).decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None


def _check_exists(path: Path) -> None:
    try:
        missing = not path.exists()
    except (OSError, ValueError):  # the name is too long or has a NUL; the reader reports it
        return
    if missing:
        raise UserError(
            f"{shorten(path)} does not exist: {_similar_file(path)}check the path{_data_dir(path)}"
        )


def _data_dir(path: Path) -> str:
    """A hint at DATA_DIR, which many configs begin their paths with, if the path is in it."""
    folder = os.environ.get("DATA_DIR")
    if not folder or not path.absolute().is_relative_to(Path(folder).absolute()):
        return ""
    return f", and set DATA_DIR, which is {shorten(folder)}, to the folder of the data"


def _similar_file(path: Path) -> str:
    """A hint at the file of the same folder with the most similar name, if there is one."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names[:MOST_NAMES], n=1, cutoff=0.75)
    return f"did you mean `{shorten(close[0])}`? Otherwise " if close else ""


def _read_parquet(path: Path) -> list[Any]:
    from fgrlhf.data.tables import read_parquet  # only this format needs it

    _check_exists(path)
    return read_parquet(path, most_unpacked(path))


def most_unpacked(path: Path) -> int:
    """Bytes that a compressed file may unpack to. No text has more."""
    return max(path.stat().st_size * MOST_GROWTH, FREE_GROWTH)


_READERS = {
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".json.gz": _read_json_gz,
    ".jsonl.gz": _read_jsonl_gz,
    ".parquet": _read_parquet,
}
