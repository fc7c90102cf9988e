"""`fgrlhf data show` and `fgrlhf data check`: look at rows, and verify them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.records import Problem, RowError, refuse_rows, type_name
from fgrlhf.cli.data_summaries import summary
from fgrlhf.configs.strict import Count, Separator, StrictModel, refuse
from fgrlhf.data.accepted import accepted
from fgrlhf.data.format import Format
from fgrlhf.data.formats import COMPARISONS, FORMATS, JUDGEMENTS, PROMPTS, SPANS, STEPS
from fgrlhf.data.quotes import Offsets, quote_notes
from fgrlhf.data.read import read_rows
from fgrlhf.data.rows import Row
from fgrlhf.data.unpaired_rows import UNPAIRED
from fgrlhf.text_types import Prompt

WITH_OFFSETS = (SPANS.name, JUDGEMENTS.name, COMPARISONS.name, UNPAIRED.name)  # formats
WITH_QUOTES = (SPANS.name, JUDGEMENTS.name)  # formats with marked texts beside the offsets
FormatName = Literal[
    "prompts", "demonstrations", "comparisons", "unpaired", "spans", "steps", "judgements"
]

ROWS_TRIED = 100  # rows used to find out which formats a file matches
MOST_SHOWN = 400  # characters shown of a row


class ShowSettings(StrictModel):
    rows: Count = Field(default=3, description="number of rows to print")


class FormatSettings(StrictModel):
    offsets: Offsets = Field(
        default=Offsets(),
        description="of spans, judgements and marked characters: how the file counts them, if not"
        " as here",
    )
    separator: Separator | None = Field(
        default=None,
        description=r"of steps: what is between them, if they are one text; \n is a line break",
    )
    format: FormatName = Field(description="format of the rows")
    columns: dict[str, str | list[str]] = Field(
        default={},
        description="the format's keys -> the file's, e.g. columns={prompt: instruction}",
    )
    limit: Count | None = Field(default=None, description="only the first rows; null: all")

    @model_validator(mode="after")
    def _settings_fit_the_format(self):
        if self.format not in WITH_OFFSETS and self.offsets != Offsets():
            known = ", ".join(WITH_OFFSETS)
            refuse([("offsets", f"are for format={known}: rows of {self.format} have none")])
        if self.format != STEPS.name and self.separator is not None:
            refuse([("separator", f"is for format={STEPS.name}: leave it out")])
        return self

    def read(self, row_format: Format[Any], source: str, counts: Counter[str]) -> list[Any]:
        """The items of a file in a format.

        Raises:
          UserError: rows are malformed. The message says how their offsets seem to be counted.
        """
        try:
            return row_format.read(
                source,
                self.columns,
                self.limit,
                counts,
                self.offsets.reading,
                self.separator,
            )
        except UserError as error:
            notes = self.notes(source)
            if not notes:
                raise
            raise UserError("\n".join([str(error), *notes])) from None

    def notes(self, source: str) -> list[str]:
        """What the file's marked texts tell about its offsets."""
        if self.format not in WITH_QUOTES:
            return []
        rows = read_rows(source)[: self.limit]
        return quote_notes(rows, self.columns, self.offsets, self.format)


def show(source: str, settings: ShowSettings) -> None:
    """Print the keys of a file with their types, the matching formats, and the first rows."""
    rows = read_rows(source)
    print(f"{source}: {counted(len(rows), 'row')}")
    for key, types in _types_by_key(rows).items():
        counts = ", ".join(f"{name} ({count:,})" for name, count in types.most_common())
        print(f"  {shorten(key, 60)}: {counts}")
    fits = [name for name in FORMATS if fits_format(name, rows)]
    print(f"formats: {', '.join(fits) or 'none without columns={...}'}")
    for number, row in enumerate(rows[: settings.rows]):
        print(f"row {number}: {shorten(json.dumps(row, ensure_ascii=False), MOST_SHOWN)}")


def _types_by_key(rows: Sequence[Any]) -> dict[str, Counter[str]]:
    """How often each key has a value of each type."""
    types: dict[str, Counter[str]] = {}
    for row in rows:
        values = row if isinstance(row, Mapping) else {"(no object)": row}
        for key, value in values.items():
            name = type_name(value).removeprefix("a ").removeprefix("an ")
            types.setdefault(key, Counter())[name] += 1
    return types


def fits_format(name: str, rows: Sequence[Any]) -> bool:
    """Whether the first rows are well formed in the format."""
    try:
        for number, values in enumerate(rows[:ROWS_TRIED]):
            if not isinstance(values, Mapping):
                return False
            row_format = FORMATS[name]
            row_format.parse(accepted(Row(values, {}), row_format.names), number)
    except RowError:
        return False
    return True


def check(source: str, settings: FormatSettings) -> None:
    """Read every row in a format and print statistics.

    Raises:
      UserError: the file cannot be read, rows are malformed, or two rows of prompts have one id.
    """
    counts: Counter[str] = Counter()
    items = settings.read(FORMATS[settings.format], source, counts)
    if settings.format == PROMPTS.name:
        _refuse_repeated_ids(source, items)
    rows = len(read_rows(source)[: settings.limit]) if counts else len(items)
    print(f"{source}: {counted(rows, 'row')} of {settings.format}, all well formed")
    print_counts(counts)
    for line in settings.notes(source):
        print(f"  {line}")
    for line in summary(settings.format, items):
        print(f"  {line}")


def print_counts(counts: Counter[str]) -> None:
    """Print what a reader noted about rows, a line each."""
    for what, count in counts.most_common():
        print(f"  {what}: {count:,}", flush=True)


def _refuse_repeated_ids(source: str, prompts: Sequence[Prompt]) -> None:
    """Raise `UserError` if two prompts have the same id. Rows of other formats may have it."""
    first_with: dict[str, int] = {}  # id -> the first row that has it
    problems = []
    for number, prompt in enumerate(prompts):
        first = first_with.setdefault(prompt.id, number)
        if first != number:
            reason = f"{shorten(prompt.id, 40)!r} is that of row {first} too"
            problems.append(Problem(number, "id", reason, source))
    way_out = (
        "An evaluation would take them for one prompt. Give every prompt its own id, or none: a row"
        " without an id has its number, counted from 0, as its id."
    )
    refuse_rows(problems, "used as prompts", way_out)
