"""Kind `bombs`: small files that unpack to far more than any text does.

A reader must refuse them by name, before it has unpacked much. The sizes here are harmless.
"""

import gzip
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.campaign import Kind
from faults.judging import Outcome, call
from fgrlhf.data.read import read_rows

LONG = 1_000_000  # characters of a text that repeats itself
MOST_MB = 400  # by which a refusal may raise the memory of the process; a file has up to 2 GB


def _parquet(path: Path, rows: int, as_dictionary: bool, nested: bool = False) -> None:
    import pyarrow
    import pyarrow.parquet

    words = pyarrow.array(["x" * LONG])
    column: Any = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * rows, pyarrow.int32()), words
    )
    if nested:
        column = pyarrow.ListArray.from_arrays([0, *range(1, rows + 1)], column)
    if not as_dictionary:
        column = column.dictionary_decode()
    pyarrow.parquet.write_table(pyarrow.table({"response": column}), path, compression="zstd")


def _gzip(path: Path, rows: int) -> None:
    line = json.dumps({"response": "x" * LONG}) + "\n"
    with gzip.open(path, "wt") as packed:
        for _ in range(rows):
            packed.write(line)


BOMBS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a dictionary": ("rows.parquet", lambda path: _parquet(path, 2_000, as_dictionary=True)),
    "a dictionary in lists": (
        "rows.parquet",
        lambda path: _parquet(path, 2_000, as_dictionary=True, nested=True),
    ),
    "pages": ("rows.parquet", lambda path: _parquet(path, 300, as_dictionary=False)),
    "gzip": ("rows.jsonl.gz", lambda path: _gzip(path, 300)),
}


class Bombs(Kind):
    """See the module's docstring."""

    name = "bombs"
    good = ("refused",)
    bad = ("traceback", "accepted", "too much memory", "over a second", "long text", "unnamed")
    cases = tuple(BOMBS)

    def run(self, index: int, folder: Path) -> Outcome:
        what = self.case(index)
        name, write = BOMBS[what]
        path = folder / name
        write(path)
        size = path.stat().st_size
        before = _peak_mb()
        called = call(lambda: len(read_rows(path)), (name,), f"{folder}/")
        grown = _peak_mb() - before
        note = f"{what}, {size:,} bytes, memory +{grown} MB: {called.note}"
        verdict = called.verdict
        if verdict == "refused" and grown > MOST_MB:
            verdict = "too much memory"
        return Outcome(verdict, note)


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
