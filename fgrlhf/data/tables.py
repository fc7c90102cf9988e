"""Rows of Arrow tables: Parquet files, and data sets of the Hugging Face hub.

A data set is fetched once, at its first use. Later it is read from the cache of the `datasets`
library without a network. Python code of a data set is never run.
"""

import datetime
import decimal
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json
from fgrlhf.base.shared_messages import print_once
from fgrlhf.data.read import HUB, MOST_GROWTH

MOST_ROWS = 20_000_000  # of a Parquet file: a few bytes can encode any number of equal rows
BATCH_ROWS = 1_000  # of a Parquet file, which are in memory at a time before they are counted
JSON_TYPE = "arrow.json"  # Arrow's extension type of JSON texts, as `datasets` writes them
HUB_SECONDS = 10.0  # to wait for the hub's first answer

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:[\w.-]+){0,2}")


# ---- Parquet -------------------------------------------------------------------------------------


def read_parquet(path: Path, most: int) -> list[Any]:
    """The rows of a Parquet file.

    Args:
      most: bytes that it may unpack to.

    Raises:
      UserError: it cannot be read, has too many rows, or unpacks to more.
    """
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = file.metadata.num_rows
            if number > MOST_ROWS:
                raise UserError(
                    f"{path} has {number:,} rows, more than {MOST_ROWS:,}: split the file"
                )
            return _unpacked_rows(path, file, most)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(
            f"{shorten(path)} is not a readable Parquet file: {shorten(error)}"
        ) from None


def _unpacked_rows(path: Path, file: Any, most: int) -> list[Any]:
    """The rows of an open Parquet file. A decompression bomb is rejected before it fills memory.

    A dictionary can hold a long text once for any number of rows. A text has at most the unpacked
    size of its part of the file, so batches of so few rows are read that one cannot be too large.
    """
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


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows atomically. Raises `UserError` if a key has values of different types."""
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


def read_data_set(name: str) -> list[Any]:
    """Rows of a data set: `org/name`, `org/name:split` or `org/name:config:split`."""
    tables = load_data_set(name).with_format("arrow")
    with naming_data_set(name):
        return list(rows_of_tables(tables))


def rows_of_tables(tables: Any) -> Iterator[Any]:
    """The rows of a data set whose format is Arrow."""
    for table in tables.iter(batch_size=1000):
        yield from plain_rows(table)


def load_data_set(name: str) -> Any:
    """A data set, named as by `read_data_set`, whose rows stay in the files of the cache.

    Raises:
      UserError: it has no such name, or is neither in the cache nor on the hub.
    """
    if not _HUB_NAME.fullmatch(name):
        raise UserError(
            f"`{HUB}{shorten(name)}` is not the name of a data set: write hub:org/name,"
            " hub:org/name:split or hub:org/name:config:split"
        )
    import datasets  # takes seconds, and a Parquet file does not need it

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


class DataSet:
    """The rows of a data set of the `datasets` library, which stay in the files of its cache.

    A `Stored` of fgrlhf/data/stream.py.

    Args:
      name: of the data set, for messages.
    """

    def __init__(self, name: str, dataset: Any):
        self._name = name
        self._tables = dataset.with_format("arrow")

    def rows(self) -> Iterator[tuple[int, Any]]:
        tables = rows_of_tables(self._tables)
        for k in range(len(self._tables)):
            with naming_data_set(self._name):
                row = next(tables)
            yield k, row

    def row(self, k: int) -> Any:
        with naming_data_set(self._name):
            return plain_rows(self._tables[k : k + 1])[0]
