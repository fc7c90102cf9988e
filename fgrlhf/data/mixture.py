"""Training rows of several files in given shares: `data.train_file: [{file, share}, ...]`.

Training reads an endless sequence of places, each with one row. Which file a place belongs to is a
pure function of the place and the shares. Among the first t places, a file with the share s has

    floor(s t) to ceil(s t) places

so the shares hold at every step, without chance. A file gives its rows in the order of shuffled
passes: after its last row it is shuffled again. A pass over the mixture (an epoch) has as many
places as the files have rows together; so a file with a larger share than its part of the rows is
read more than once in it, another one in part, and goes on there in the next pass.

Shares need not add up to 1: each is divided by their sum. They are kept to a ten-thousandth.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain
from math import floor, lcm
from pathlib import Path
from typing import Any, TypeVar

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.sections import TrainFile, files_of
from fgrlhf.data.stream import Lazy, mapped
from fgrlhf.text_types import Prompt

Item = TypeVar("Item")
Other = TypeVar("Other")
PARTS = 10_000  # shares are multiples of 1 / PARTS, unless a smaller whole number suits them
# (number of rows, seed, pass) -> the rows in the order of a pass
Shuffle = Callable[[int, int, int], list[int]]


@dataclass(frozen=True)
class Mixture:
    """The files of a mixture, by their places in the list.

    Args:
      files: their names.
      shares: of the rows that are read, relative to their sum.
      sizes: how many rows each file has.
    """

    files: tuple[str, ...]
    shares: tuple[float, ...]
    sizes: tuple[int, ...]

    @cached_property
    def weights(self) -> tuple[int, ...]:
        return whole_weights(self.shares)

    @property
    def names(self) -> list[str]:
        return short_names(self.files)

    def places(self, first: int, number: int) -> tuple[list[int], list[int]]:
        """Which file each of `number` places from place `first` on belongs to.

        Row j (from 0) of a file with the share s = w / W, where w is its weight and W the sum of
        all, is due in the places from floor(j / s) to ceil((j + 1) / s) - 1. Of the files whose
        next row may come, a place gets the one that is due first: of unit jobs on one machine, that
        order meets every date that can be met (Baruah et al. 1996, Proportionate progress, with one
        processor). After W places the counts are the weights, and all begins again.

        Returns:
          the counts of each file's places before `first`, and the files.
        """
        total = sum(self.weights)
        periods, rest = divmod(first, total)
        counts = [0] * len(self.weights)
        files = []
        for place in range(rest + number):
            due = []
            for file, (weight, count) in enumerate(zip(self.weights, counts)):
                if count * total < (place + 1) * weight:
                    due.append((-(-(count + 1) * total // weight), file))
            _, file = min(due)
            counts[file] += 1
            files.append(file)
        before = [periods * weight for weight in self.weights]
        for file in files[:rest]:
            before[file] += 1
        return before, files[rest:]

    def order(self, shuffle: Shuffle, seed: int, first: int, number: int) -> list[int]:
        """The rows at `number` places from place `first` on, as indices into all files' rows.

        Args:
          shuffle: the order of a pass over one file.
          seed: of the first file; those of the others are derived from it.
        """
        counts, files = self.places(first, number)
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        seeds = [derive_seed(seed, "file", i) if i else seed for i in range(len(self.sizes))]
        passes: dict[int, tuple[int, list[int]]] = {}  # file -> a pass, and its order
        rows = []
        for file in files:
            number_of_pass, i = divmod(counts[file], self.sizes[file])
            if passes.get(file, (-1,))[0] != number_of_pass:
                order = shuffle(self.sizes[file], seeds[file], number_of_pass)
                passes[file] = number_of_pass, order
            rows.append(starts[file] + passes[file][1][i])
            counts[file] += 1
        return rows

    def passes(self, place: int) -> dict[str, float]:
        """How often each file has been read at a place: rows that it gave / its rows."""
        counts, _ = self.places(place, 0)
        named = zip(self.names, counts, self.sizes)
        return {f"passes/{name}": count / size for name, count, size in named}

    def describe(self) -> str:
        """A line on what each file gives in a pass over the mixture."""
        total, n_rows = sum(self.weights), sum(self.sizes)
        parts = []
        for name, weight, size in zip(self.names, self.weights, self.sizes):
            share = weight / total
            parts.append(f"{name} {share:.1%} ({size:,} rows, {share * n_rows / size:.3g} passes)")
        line = f"mixture, in each pass of {n_rows:,} rows: {', '.join(parts)}"
        given = sum(map(Fraction, map(str, self.shares)))
        return line if given == 1 else f"{line}; shares are divided by their sum {float(given):g}"

    def describe_read(self, place: int) -> str:
        """A line on what each file has given up to a place."""
        counts, _ = self.places(place, 0)
        parts = []
        for name, count, size in zip(self.names, counts, self.sizes):
            parts.append(f"{name} {count:,} rows ({count / size:.3g} passes)")
        return f"mixture, read: {', '.join(parts)}"


class MixedRows(Lazy[Item]):
    """The rows of several files, one file after the other.

    Raises:
      UserError: a file has none.
    """

    def __init__(self, parts: Sequence[Sequence[Item]], files: Sequence[str], shares: Sequence):
        for file, rows in zip(files, parts):
            if not rows:
                raise UserError(
                    f"{shorten(file)} has no row to train on, so it cannot give its share of the"
                    " mixture: leave the file out, or correct its rows"
                )
        self.parts = parts
        self.mixture = Mixture(tuple(files), tuple(shares), tuple(map(len, parts)))

    def __len__(self) -> int:
        return sum(self.mixture.sizes)

    def item(self, place: int) -> Item:
        file = 0
        while place >= len(self.parts[file]):
            place -= len(self.parts[file])
            file += 1
        return self.parts[file][place]

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(self.parts)


def mixture_of(rows: Sequence[Any]) -> Mixture | None:
    """The mixture of rows of several files; None for rows of one file."""
    return rows.mixture if isinstance(rows, MixedRows) else None


def read_files(train_file: TrainFile, read: Callable[[str], Sequence[Item]]) -> Sequence[Item]:
    """The rows of `data.train_file`, as `read` returns those of a file.

    In a mixture, the prompts' ids begin with their file, since two files may have the same ids.

    Raises:
      UserError: a file cannot be read.
    """
    if isinstance(train_file, str):
        return read(train_file)
    if len(train_file) == 1:
        return read(train_file[0].file)
    files = files_of(train_file)
    parts = []
    for file, name in zip(files, short_names(files)):
        parts.append(mapped(read(file), partial(_of_file, name)))
    return MixedRows(parts, files, [each.share for each in train_file])


def of_each(
    rows: Sequence[Item], function: Callable[[Sequence[Item]], Sequence[Other]]
) -> Sequence[Other]:
    """`function(rows)`, whose result may have other rows; for a mixture, that of each file.

    Raises:
      UserError: nothing is left of a file.
    """
    if not isinstance(rows, MixedRows):
        return function(rows)
    parts = [function(part) for part in rows.parts]
    return MixedRows(parts, rows.mixture.files, rows.mixture.shares)


def _of_file(name: str, rows: Sequence[Any]) -> list[Any]:
    """The rows, with ids of prompts that begin with a name."""
    return [_named(name, row) for row in rows]


def _named(name: str, row: Any) -> Any:
    if isinstance(row, Prompt):
        return replace(row, id=f"{name}:{row.id}")
    if isinstance(getattr(row, "prompt", None), Prompt):
        return replace(row, prompt=_named(name, row.prompt))
    return row


def whole_weights(shares: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in the proportion of the shares, with a sum of at most about `PARTS`.

    They are exact where such numbers exist. Otherwise they are rounded, and at least 1.
    """
    exact = [Fraction(str(share)) for share in shares]
    exact = [share / sum(exact) for share in exact]
    total = lcm(*[share.denominator for share in exact])
    if total <= PARTS:
        return tuple(int(share * total) for share in exact)
    return tuple(max(1, floor(share * PARTS + Fraction(1, 2))) for share in exact)


def short_names(files: Sequence[str]) -> list[str]:
    """The names of files without their folders, where these differ; names of data sets stay."""
    names = [file if file.startswith("hub:") else Path(file).name for file in files]
    return names if len(set(names)) == len(names) else list(files)
