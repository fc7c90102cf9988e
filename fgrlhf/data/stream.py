"""Rows that stay in their file: for data sets that do not fit into memory.

A large file of JSON lines is read once, to check every row and to note where its items are. Later
an item is read from the file whenever it is needed. In memory, an item takes 18 bytes.
"""

import os
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, overload

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import BYTE_ORDER_MARK, parse_json
from fgrlhf.base.records import Problem, read_each
from fgrlhf.data.read import Line, lines_of

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


class FileRows(Lazy[Item]):
    """The items in the rows of a .jsonl file.

    Args:
      path: of the file.
      items_of: (number of a row, the row) -> the items in it.
    """

    def __init__(self, path: str | Path, items_of: Callable[[int, Any], list[Item]]):
        self._path = path
        self._items_of = items_of
        self._file = open(path, "rb")  # noqa: SIM115  as long as the rows live
        self._state = self._state_of_file()
        self._offsets = array("Q")  # of the row of each item
        self._lengths = array("I")
        self._numbers = array("I")  # of the row
        self._places = array("H")  # of the item in the row

    def add(self, number: int, line: Line, items: int) -> None:
        """Note a row with so many items."""
        for place in range(items):
            self._offsets.append(line.offset)
            self._lengths.append(line.length)
            self._numbers.append(number)
            self._places.append(place)

    def __len__(self) -> int:
        return len(self._offsets)

    def item(self, place: int) -> Item:
        data = os.pread(self._file.fileno(), self._lengths[place], self._offsets[place])
        if self._state_of_file() != self._state:
            raise UserError(
                f"{shorten(self._path)} has changed while it was read: start again, and leave"
                " the file as it is while the run reads it"
            )
        row = parse_json(data.decode("utf-8").removeprefix(BYTE_ORDER_MARK), unique_keys=True)
        return self._items_of(self._numbers[place], row)[self._places[place]]

    def _state_of_file(self) -> tuple[int, int]:
        stat = os.fstat(self._file.fileno())
        return stat.st_size, stat.st_mtime_ns


def file_rows(
    path: str | Path,
    count_items: Callable[[int, Mapping[str, Any]], int],
    items_of: Callable[[int, Any], list[Item]],
    place: str = "row",
) -> tuple[FileRows[Item], list[Problem]]:
    """The items in the rows of a file of JSON lines, and what is wrong with its rows.

    Args:
      count_items: reads a row for the first time: (its number, the row) -> how many items it has.
        Raises `RowError`.
      items_of: reads a row again: (its number, the row) -> the items.
      place: what the numbers count: rows from 0, or each `line` from 1.
    """
    found = FileRows(path, items_of)
    line = Line(0, 0, 0, None)

    def rows() -> Iterator[tuple[int, Any]]:
        nonlocal line
        for number, line in enumerate(lines_of(path)):  # noqa: B007
            yield line.number if place == "line" else number, line.row

    def note(number: int, values: Mapping[str, Any]) -> None:
        found.add(number, line, count_items(number, values))

    _, problems = read_each(rows(), note, path, place)
    return found, problems


def is_large(source: str | Path) -> bool:
    """Whether a source is a large file."""
    try:
        return os.path.getsize(source) > LARGE
    except (OSError, ValueError):  # the reader reports it
        return False


def stays_in_file(source: str | Path) -> bool:
    """Whether a source is a large .jsonl file, whose rows are read when they are needed."""
    return str(source).endswith(".jsonl") and is_large(source)
