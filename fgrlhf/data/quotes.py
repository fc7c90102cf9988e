"""Marked texts beside the offsets of spans: which key has them, and how the offsets count."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal

from pydantic import Field

from fgrlhf.base.errors import shorten
from fgrlhf.base.records import RowError
from fgrlhf.configs.strict import StrictModel
from fgrlhf.data.format import RESPONSE
from fgrlhf.data.locate import CODE_POINTS, Reading, counted
from fgrlhf.data.offsets import BASES, CODE_POINT, ENDS, EXCLUSIVE, UNITS
from fgrlhf.data.rows import Columns, Row, look_up

FITS = 0.5  # least share of texts that equal the marked characters for a key to be proposed
SPANS = "spans"  # the name of a format
QUOTE = "quote"
READ = ("start", "end", "label", "severity", "evidence", "reason", "side")


class Offsets(StrictModel):
    """How a file counts the offsets of spans (fgrlhf/data/offsets.py)."""

    unit: Literal["code_points", "utf16", "graphemes", "words"] = Field(
        default="code_points", description="what is counted"
    )
    base: Literal[0, 1] = Field(default=0, description="the number of the first unit")
    end: Literal["exclusive", "inclusive"] = Field(
        default="exclusive", description="whether the end is behind the span or its last unit"
    )

    @property
    def reading(self) -> Reading:
        if (self.unit, self.base, self.end) == (CODE_POINT, 0, EXCLUSIVE):
            return CODE_POINTS
        return counted(f"{self.unit} from {self.base}, end {self.end}", *self._values)

    @property
    def _values(self) -> tuple[str, int, str]:
        return self.unit, self.base, self.end

    def __str__(self) -> str:
        return f"offsets.unit={self.unit} offsets.base={self.base} offsets.end={self.end}"


# of ways that fit equally, the first is proposed: another unit is likelier than another base
WAYS = [Offsets(unit=u, base=b, end=e) for b, e, u in product(BASES, ENDS, UNITS)]  # pyright: ignore[reportArgumentType]


def quote_notes(
    rows: Sequence[Any], columns: Columns, offsets: Offsets, name: str = SPANS
) -> list[str]:
    """What to tell about texts of spans that are marked characters if offsets count in some way.

    Args:
      rows: as in the file.
      offsets: how they are read.
      name: the key of the lists of spans, which is the name of the format: `spans` or `judgements`.
    """
    totals: Counter[str] = Counter()
    fits: dict[str, Counter[int]] = {}  # key -> number in WAYS -> texts that are marked then
    for key, quote, text, start, end in _quotes(rows, columns, name):
        totals[key] += 1
        fitting = fits.setdefault(key, Counter())
        for number, way in enumerate(WAYS):
            first, last = way.reading.span(text, start, end)
            fitting[number] += 0 <= first <= last and text[first:last] == quote
    notes = []
    for key, total in totals.items():
        best = max(fits[key], key=lambda number: fits[key][number])  # of equals, the first
        count = fits[key][best]
        now = fits[key][WAYS.index(offsets)]
        is_read = name != SPANS or columns.get("spans.quote", QUOTE) == key
        if count < FITS * total or (now == count and is_read):
            continue
        way = WAYS[best] if count > now else offsets
        short = shorten(key, 40)
        give = [] if name != SPANS else [f"columns.spans.quote={short}"]
        if count > now:
            give.append(str(way))
        notes.append(
            f"`{name}.{short}` is the marked text of {count:,} of {total:,} spans with"
            f" {way}, of {now:,} as they are read: give {' '.join(give)}"
        )
    return notes


def _quotes(
    rows: Sequence[Any], columns: Columns, name: str
) -> Iterator[tuple[str, str, str, int, int]]:
    """(key, its text, the response, start, end) of all further texts of spans of responses."""
    paths = {part: str(columns.get(f"{name}.{part}", part)) for part in READ}
    for values in rows:
        if not isinstance(values, Mapping):
            continue
        row = Row(values, columns)
        try:
            response = row.get(row.first_of("response", "completion"))
            spans = row.get(name)
        except RowError:
            continue
        if not isinstance(response, str) or not isinstance(spans, list):
            continue
        for span in spans:
            found = _places(span, paths)
            if found is None:
                continue
            for key, value in span.items():
                # a judgement has no other key with a marked text
                is_quote = key not in paths.values() if name == SPANS else key == QUOTE
                if is_quote and isinstance(value, str) and value.strip():
                    yield key, value, response, *found


def _places(span: Any, paths: Mapping[str, str]) -> tuple[int, int] | None:
    """The claimed start and end of a span of a response; None if it has none."""
    if not isinstance(span, Mapping):
        return None
    try:
        start, end = look_up(span, paths["start"]), look_up(span, paths["end"])
    except RowError:
        return None
    is_source = span.get(paths["side"]) not in (None, False, RESPONSE)
    if is_source or not isinstance(start, int) or not isinstance(end, int):
        return None
    return start, end
