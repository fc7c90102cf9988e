"""Rows of a file or of a published data set, whatever its format.

    rows.json        one JSON array of objects, or JSON lines
    rows.jsonl       JSON lines: one object on each line; blank lines are skipped
    rows.json.gz     either of them, compressed; also rows.jsonl.gz
    rows.parquet     a Parquet file: one object for each row, with the columns as keys
    hub:org/name     split `train` of a data set of the Hugging Face hub; also hub:org/name:split
                     and hub:org/name:config:split

A data set is fetched once, at its first use. Later it is read from the cache of the `datasets`
library without a network. Python code of a data set is never run.
"""

import datetime
import decimal
import difflib
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from fgrlhf.base.shared_messages import print_once

HUB = "hub:"
SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".parquet")
MOST_ROWS = 20_000_000  # of a Parquet file: a few bytes can encode any number of equal rows
BLOCK = 1 << 20
HUB_SECONDS = 10.0  # to wait for the hub's first answer
MOST_NAMES = 1_000  # files of a folder that are compared with the name of a missing one
# Highest ratio of unpacked to compressed size. Rows of text have a ratio of 3 to 10.
MOST_GROWTH = 200
BATCH_ROWS = 1_000  # of a Parquet file, which are in memory at a time before they are counted
JSON_TYPE = "arrow.json"  # Arrow's extension type of JSON texts, as `datasets` writes them
FREE_GROWTH = 16 * BLOCK  # unpacked bytes that are allowed at any ratio

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:[\w.-]+){0,2}")


def read_rows(source: str | Path) -> list[Any]:
    """The rows of a file or data set, in order. The suffix determines the file's format.

    Rows are JSON values; fgrlhf/data/formats.py checks them. In Parquet files and data sets, dates
    and decimal numbers become text, and binary values become null.

    Raises:
      UserError: the source does not exist, cannot be read, has an unknown suffix, or has no rows.
    """
    name = str(source)
    if name.startswith(HUB):
        rows = _read_hub(name.removeprefix(HUB))
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
        _write_parquet(Path(path), rows)


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
        most = max(path.stat().st_size * MOST_GROWTH, FREE_GROWTH)
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


# ---- Parquet -------------------------------------------------------------------------------------


def _read_parquet(path: Path) -> list[Any]:
    import pyarrow  # takes seconds, and only this format needs it
    import pyarrow.parquet

    _check_exists(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = file.metadata.num_rows
            if number > MOST_ROWS:
                raise UserError(
                    f"{path} has {number:,} rows, more than {MOST_ROWS:,}: split the file"
                )
            return _unpacked_rows(path, file)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(
            f"{shorten(path)} is not a readable Parquet file: {shorten(error)}"
        ) from None


def _unpacked_rows(path: Path, file: Any) -> list[Any]:
    """The rows of an open Parquet file. A decompression bomb is rejected before it fills memory.

    A dictionary can hold a long text once for any number of rows. A text has at most the unpacked
    size of its part of the file, so batches of so few rows are read that one cannot be too large.
    """
    most = max(path.stat().st_size * MOST_GROWTH, FREE_GROWTH)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    largest = max((group.total_byte_size for group in groups), default=1)
    size = 0
    rows: list[Any] = []
    for batch in file.iter_batches(batch_size=max(1, min(BATCH_ROWS, most // max(1, largest)))):
        unpacked = plain_rows(batch) if batch.nbytes <= most else []
        size += max(batch.nbytes, sum(_size(row) for row in unpacked))
        if size > most:
            raise UserError(
                f"{shorten(path)} unpacks to more than {MOST_GROWTH} times its size, which no text"
                " does: it is damaged, or made to fill the memory. If the rows really repeat each"
                " other so often, write them as JSON lines"
            )
        rows += unpacked
    return rows


def _size(value: Any) -> int:
    """About how many bytes a JSON value has."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return 1


def plain_rows(batch: Any) -> list[Any]:
    """The rows of an Arrow record batch as JSON values. Columns of JSON texts are decoded."""
    rows = [plain(row) for row in batch.to_pylist()]
    for name, kind in zip(batch.schema.names, batch.schema.types):
        if _has_json(kind):
            for row in rows:
                row[name] = _decoded(row[name], kind)
    return rows


def _has_json(kind: Any) -> bool:
    """Whether an Arrow type is JSON, or a list or struct with JSON inside."""
    if getattr(kind, "extension_name", None) == JSON_TYPE:
        return True
    return any(_has_json(kind.field(i).type) for i in range(kind.num_fields))


def _decoded(value: Any, kind: Any) -> Any:
    """A value of an Arrow type with its JSON texts decoded. A text that is no JSON stays a text."""
    if getattr(kind, "extension_name", None) == JSON_TYPE:
        try:
            return parse_json(value) if isinstance(value, str) else value
        except ValueError:
            return value
    if isinstance(value, list) and kind.num_fields == 1:
        return [_decoded(item, kind.field(0).type) for item in value]
    if isinstance(value, dict):
        decoded = dict(value)
        for i in range(kind.num_fields):
            field = kind.field(i)
            if field.name in decoded and _has_json(field.type):
                decoded[field.name] = _decoded(decoded[field.name], field.type)
        return decoded
    return value


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    keys = list(dict.fromkeys(key for row in rows for key in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        table = pyarrow.table({key: _column([row.get(key) for row in rows]) for key in keys})
        # pyarrow's own errors of the operating system do not name the file
        with open(temporary, "wb") as file:
            pyarrow.parquet.write_table(table, file)
        os.replace(temporary, path)
    except (pyarrow.ArrowException, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} cannot be written: {shorten(error)}. A column of a Parquet file has one type:"
            " write a .jsonl file instead"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _column(values: list[Any]) -> Any:
    """The values of a key as Parquet stores them.

    An object has all keys of its column there, with null for those that it lacks, and at least one.
    So an object without keys would come back as another one: such a column has JSON texts.
    """
    import pyarrow

    if not any(map(_has_empty_object, values)):
        return pyarrow.array(values)
    texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return pyarrow.ExtensionArray.from_storage(
        pyarrow.json_(pyarrow.string()), pyarrow.array(texts, pyarrow.string())
    )


def _has_empty_object(value: Any) -> bool:
    if isinstance(value, dict):
        return not value or any(map(_has_empty_object, value.values()))
    return isinstance(value, list) and any(map(_has_empty_object, value))


def plain(value: Any) -> Any:
    """A value of a Parquet file or data set as a JSON value."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    return value if isinstance(value, str | int | float | bool) else None


# ---- data sets -----------------------------------------------------------------------------------


def _read_hub(name: str) -> list[Any]:
    """Rows of a data set: `org/name`, `org/name:split` or `org/name:config:split`."""
    tables = load_data_set(name).with_format("arrow")
    with naming_data_set(name):
        return list(rows_of_tables(tables))


def rows_of_tables(tables: Any) -> Iterator[Any]:
    """The rows of a data set whose format is Arrow."""
    for table in tables.iter(batch_size=1000):
        yield from plain_rows(table)


def load_data_set(name: str) -> Any:
    """A data set, named as by `_read_hub`, whose rows stay in the files of the cache.

    Raises:
      UserError: it has no such name, or is neither in the cache nor on the hub.
    """
    if not _HUB_NAME.fullmatch(name):
        raise UserError(
            f"`{HUB}{shorten(name)}` is not the name of a data set: write hub:org/name,"
            " hub:org/name:split or hub:org/name:config:split"
        )
    import datasets  # takes seconds, and only this source needs it

    path, config, split = _parts(name)
    with naming_data_set(name):
        try:
            with _without_network():
                return datasets.load_dataset(path, config, split=split)
        except Exception:  # it is not in the cache, or not with this split and config
            _check_reachable(path)
            return datasets.load_dataset(path, config, split=split)


def _parts(name: str) -> tuple[str, str | None, str]:
    """The path, config and split in the name of a data set."""
    path, *parts = name.split(":")
    split = parts.pop() if parts else "train"
    return path, parts.pop() if parts else None, split


@contextmanager
def naming_data_set(name: str) -> Iterator[None]:
    """Errors of the `datasets` library as errors that name the data set, such as `org/name`."""
    try:
        yield
    except Exception as error:  # the library raises errors of many kinds
        path, config, split = _parts(name)
        arguments = ", ".join(repr(argument) for argument in (path, config) if argument)
        raise UserError(
            f"the data set {path} (split {split}, config {config or 'default'}) cannot be read from"
            f" the cache of `datasets`, nor fetched from the hub ({type(error).__name__}:"
            f" {shorten(error)}). Check its name, config and split; a private or gated one needs"
            " `hf auth login`. Without a network, fetch it where there is one, by"
            f' python -c "import datasets; datasets.load_dataset({arguments})", and copy the folder'
            " HF_HOME, or give a file of its rows"
        ) from None


def _check_reachable(path: str) -> None:
    """Raise the hub's error if a data set cannot be fetched, and else say that it is fetched.

    The hub is asked once with a short limit, because a download tries again for minutes.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    if constants.HF_HUB_OFFLINE:
        raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
    HfApi().dataset_info(path, timeout=HUB_SECONDS)
    print_once(f"note: {HUB}{path} is not in the cache: it is fetched once from the hub")


@contextmanager
def _without_network() -> Iterator[None]:
    """Let the `datasets` library read only its cache: fast, and always the same rows."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


_READERS = {
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".json.gz": _read_json_gz,
    ".jsonl.gz": _read_jsonl_gz,
    ".parquet": _read_parquet,
}
