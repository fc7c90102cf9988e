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
    """The rows of an Arrow record batch as JSON values.

    Columns of JSON texts are decoded, and classes of the `datasets` library have their names.
    """
    rows = [plain(row) for row in batch.to_pylist()]
    for name, feature in _features(batch.schema).items():
        if _has_classes(feature):
            for row in rows:
                row[name] = _named(row[name], feature)
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


# ---- classes of `datasets`: the place of a name in a list ----------------------------------------


def _features(schema: Any) -> dict[str, Any]:
    """Column -> what the `datasets` library has recorded of it in an Arrow schema; {} without."""
    try:
        recorded = parse_json((schema.metadata or {})[b"huggingface"].decode())
        features = recorded["info"]["features"]
        return {name: features[name] for name in schema.names if name in features}
    except (KeyError, TypeError, ValueError):
        return {}


def _names(feature: Any) -> list[str] | None:
    """The names of a class label; None for another feature."""
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return None
    names = feature.get("names")
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_list else None


def _has_classes(feature: Any) -> bool:
    """Whether a feature has class labels, also inside of lists and objects."""
    if isinstance(feature, list):
        return any(map(_has_classes, feature))
    if not isinstance(feature, dict):
        return False
    return _names(feature) is not None or any(map(_has_classes, feature.values()))


def _named(value: Any, feature: Any) -> Any:
    """A value of a column with the names of its classes in place of their places in the list.

    Names that are numbers, or true and false, become numbers and truth values. A class of -1 is
    missing. `datasets` before 4 stored a list of objects as an object of lists.
    """
    names = _names(feature)
    if names is not None:
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        return _values_of(names)[value] if 0 <= value < len(names) else None
    if isinstance(feature, list) and len(feature) == 1 and isinstance(value, list):
        return [_named(item, feature[0]) for item in value]
    if not isinstance(feature, dict):
        return value
    inner = feature.get("feature") if isinstance(feature.get("_type"), str) else feature
    if isinstance(value, list):
        return [_named(item, inner) for item in value]
    if isinstance(value, dict) and isinstance(inner, dict):
        is_list = inner is not feature
        named = {}
        for key, item in value.items():
            of_key = [inner.get(key)] if is_list and isinstance(item, list) else inner.get(key)
            named[key] = _named(item, of_key)
        return named
    return value


def _values_of(names: list[str]) -> list[Any]:
    """Names as values: numbers and truth values if all of them are such, else texts."""
    lower = [name.lower() for name in names]
    if set(lower) <= {"true", "false"}:
        return [name == "true" for name in lower]
    if all(re.fullmatch(r"0|-?[1-9][0-9]{0,8}", name) for name in names):
        return [int(name) for name in names]
    return names


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
