"""Rows that stay in their file: for data sets that do not fit into memory.

A large file of JSON lines, or a large data set of the hub, is read once, to check every row and to
note where its items are. Later an item is read from the file whenever it is needed. In memory, an
item takes 6 bytes, and a line of a file 12 more.
"""

import os
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import BYTE_ORDER_MARK, parse_json
from fgrlhf.base.records import Problem, read_each
from fgrlhf.data.read import HUB, lines_of

Item = TypeVar("Item", covariant=True)
Source = TypeVar("Source")

LARGE = 256 * 2**20  # bytes of a file whose rows stay there
KEPT = 1_024  # items that were computed last, such as those of a batch


class Lazy(Sequence[Item]):
    """A sequence whose items are computed when they are needed. A slice is a list."""

    @abstractmethod
    def item(self, place: int) -> Item:
        """The item at a place from 0."""

    @overload
    def __getitem__(self, place: int) -> Item: ...

    @overload
    def __getitem__(self, place: slice) -> list[Item]: ...

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self.item(i) for i in range(*place.indices(len(self)))]
        i = place + len(self) if place < 0 else place
        if not 0 <= i < len(self):
            raise IndexError(f"place {place} of {len(self)}")
        return self.item(i)

    def __iter__(self) -> Iterator[Item]:
        return map(self.item, range(len(self)))


class Mapped(Lazy[Item]):
    """`function(rows)`, computed for the rows that are needed; it keeps their number and order."""

    def __init__(self, rows: Sequence[Source], function: Callable[[Sequence[Source]], Sequence]):
        self._rows = rows
        self._function = function
        self._item = lru_cache(KEPT)(lambda place: function([rows[place]])[0])

    def __len__(self) -> int:
        return len(self._rows)

    def item(self, place: int) -> Item:
        return self._item(place)

    def __iter__(self) -> Iterator[Item]:
        for part in parts_of(self._rows):
            yield from self._function(part)


def mapped(rows: Sequence[Source], function: Callable[[Sequence[Source]], Sequence]) -> Sequence:
    """`function(rows)`, which keeps number and order; of rows in a file, when it is needed."""
    return Mapped(rows, function) if isinstance(rows, Lazy) else function(rows)


class Chosen(Lazy[Item]):
    """Some of the rows, in their order.

    Args:
      places: of these rows, ascending.
    """

    def __init__(self, rows: Sequence[Item], places: Sequence[int]):
        self._rows = rows
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def item(self, place: int) -> Item:
        return self._rows[self._places[place]]

    def __iter__(self) -> Iterator[Item]:
        places = iter(self._places)
        wanted = next(places, None)
        for place, row in enumerate(self._rows):
            if place == wanted:
                yield row
                wanted = next(places, None)


def chosen(rows: Sequence[Item], is_wanted: Callable[[Item], bool]) -> Sequence[Item]:
    """The rows that are wanted; of rows in a file, their places are kept."""
    if not isinstance(rows, Lazy):
        return [row for row in rows if is_wanted(row)]
    places = array("I", (place for place, row in enumerate(rows) if is_wanted(row)))
    return rows if len(places) == len(rows) else Chosen(rows, places)


def spread(rows: Sequence[Item], most: int) -> Sequence[Item]:
    """The rows, or so many of them at even distances if there are more."""
    if len(rows) <= most:
        return rows
    return [rows[k * len(rows) // most] for k in range(most)]


def parts_of(rows: Sequence[Source]) -> Iterator[list[Source]]:
    """The rows in lists of at most `KEPT`."""
    iterator = iter(rows)
    while part := list(islice(iterator, KEPT)):
        yield part


class Stored(Protocol):
    """Rows that stay where they are, and can be read again."""

    def rows(self) -> Iterator[tuple[int, Any]]:
        """All rows, read for the first time: their numbers in messages, and the rows."""
        ...

    def row(self, k: int) -> Any:
        """Row k, from 0, once more."""
        ...


class JsonLines:
    """The rows of a file of JSON lines.

    Args:
      lines: whether the numbers are those of the lines, from 1, and not those of the rows from 0.
    """

    def __init__(self, path: str | Path, lines: bool = False):
        self._path = path
        self._lines = lines
        self._file = open(path, "rb")  # noqa: SIM115  as long as the rows live
        self._state = self._state_of_file()
        self._offsets = array("Q")
        self._lengths = array("I")

    def rows(self) -> Iterator[tuple[int, Any]]:
        for k, line in enumerate(lines_of(self._path)):
            self._offsets.append(line.offset)
            self._lengths.append(line.length)
            yield line.number if self._lines else k, line.row

    def row(self, k: int) -> Any:
        data = os.pread(self._file.fileno(), self._lengths[k], self._offsets[k])
        if self._state_of_file() != self._state:
            raise UserError(
                f"{shorten(self._path)} has changed while it was read: start again, and leave"
                " the file as it is while the run reads it"
            )
        return parse_json(data.decode("utf-8").removeprefix(BYTE_ORDER_MARK), unique_keys=True)

    def _state_of_file(self) -> tuple[int, int]:
        stat = os.fstat(self._file.fileno())
        return stat.st_size, stat.st_mtime_ns


class StoredItems(Lazy[Item]):
    """The items in stored rows.

    Args:
      items_of: (number of a row from 0, the row) -> the items in it.
    """

    def __init__(self, stored: Stored, items_of: Callable[[int, Any], list[Item]]):
        self._stored = stored
        self._items_of = items_of
        self._rows = array("I")  # of each item
        self._places = array("H")  # of the item in the row

    def add(self, k: int, items: int) -> None:
        """Note that row k has so many items."""
        self._rows.extend([k] * items)
        self._places.extend(range(items))

    def __len__(self) -> int:
        return len(self._rows)

    def item(self, place: int) -> Item:
        k = self._rows[place]
        return self._items_of(k, self._stored.row(k))[self._places[place]]


def items_in(
    stored: Stored,
    count_items: Callable[[int, Mapping[str, Any]], int],
    items_of: Callable[[int, Any], list[Item]],
    file: str | Path,
    place: str = "row",
) -> tuple[StoredItems[Item], list[Problem]]:
    """The items in stored rows, and what is wrong with rows.

    Args:
      count_items: reads a row for the first time: (its number, the row) -> how many items it has.
        Raises `RowError`.
      items_of: reads a row again: (its number from 0, the row) -> the items.
      place: what the numbers in messages count: a `row` or a `line`.
    """
    found = StoredItems(stored, items_of)
    k = 0

    def rows() -> Iterator[tuple[int, Any]]:
        nonlocal k
        for k, numbered in enumerate(stored.rows()):  # noqa: B007
            yield numbered

    def note(number: int, values: Mapping[str, Any]) -> None:
        found.add(k, count_items(number, values))

    _, problems = read_each(rows(), note, file, place)
    return found, problems


def stored_rows(source: str | Path) -> Stored | None:
    """The rows of a large .jsonl file or data set, which are read when they are needed.

    None for another source, whose rows can be in memory.

    Raises:
      UserError: the data set cannot be loaded.
    """
    name = str(source)
    if name.startswith(HUB):
        from fgrlhf.data.tables import DataSet, load_data_set  # only such sources need it

        name = name.removeprefix(HUB)
        dataset = load_data_set(name)
        return DataSet(name, dataset) if dataset.data.nbytes > LARGE else None
    return JsonLines(source) if name.endswith(".jsonl") and is_large(source) else None


def is_large(source: str | Path) -> bool:
    """Whether a source is a large file."""
    try:
        return os.path.isfile(source) and os.path.getsize(source) > LARGE
    except (OSError, ValueError):  # the reader reports it
        return False
