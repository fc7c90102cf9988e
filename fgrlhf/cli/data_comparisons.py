"""`fgrlhf data explore` and `fgrlhf data filter`: describe feedback, and leave pairs out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import write_text
from fgrlhf.cli.data_inspect import fits_format
from fgrlhf.configs.strict import Count, FilePath, StrictModel
from fgrlhf.data.comparisons import Comparison
from fgrlhf.data.format import Format
from fgrlhf.data.formats import COMPARISONS, SPANS
from fgrlhf.data.judgements import JUDGEMENTS, JudgedResponse
from fgrlhf.data.read import check_input_and_output, check_not_input, read_rows, write_rows

FilterName = Literal["blank", "identical", "contradicted", "close", "duplicates"]


class ComparisonSettings(StrictModel):
    columns: dict[str, str | list[str]] = Field(
        default={}, description="keys of a comparison -> the file's"
    )
    limit: Count | None = Field(default=None, description="only the first rows; null: all")


class ExploreSettings(ComparisonSettings):
    out: FilePath = Field(default="explore.html", description="the page")


class FilterSettings(ComparisonSettings):
    drop: list[FilterName] = Field(min_length=1, description="filters, applied in this order")


def explore_feedback(source: str, settings: ExploreSettings) -> None:
    """Write a page of statistics of comparisons, marks and scores, and print the findings."""
    # they take seconds, and other actions do not need them
    from fgrlhf.data.explore import explore
    from fgrlhf.data.explore_marks import explore_marks, findings, ratings_of
    from fgrlhf.data.explore_page import page, warnings

    check_not_input(source, settings.out)
    rows = read_rows(source)[: settings.limit]
    judged = _judged(source, rows, settings)
    ratings = ratings_of(rows)
    marks = explore_marks(judged, ratings) if judged or ratings else None
    comparisons = _comparisons(source, rows, settings, is_needed=marks is None)
    exploration = explore(comparisons) if comparisons else None
    if marks is not None:
        print(f"{source}: {counted(len(rows), 'row')}")
        for line in findings(marks):
            print(f"  {line}")
    if exploration is not None:
        print(f"{source}: {exploration.rows:,} rows, {exploration.pairs:,} decided pairs")
        for warning in warnings(exploration):
            print(f"  {warning}")
    write_text(settings.out, page(Path(source).name, exploration, comparisons, marks))
    print(f"page: {settings.out}")


def _judged(source: str, rows: Sequence[Any], settings: ExploreSettings) -> list[JudgedResponse]:
    """The responses with judgements or spans; [] if no row has any."""

    def has(row_format: Format, key: str) -> bool:
        is_renamed = key in _columns_of(row_format.names, settings)
        return is_renamed or any(isinstance(row, Mapping) and key in row for row in rows)

    if has(JUDGEMENTS, "judgements"):
        columns = _columns_of(JUDGEMENTS.names, settings)
        return JUDGEMENTS.read(source, columns, settings.limit)
    if has(SPANS, "spans"):
        columns = _columns_of(SPANS.names, settings)
        return SPANS.read(source, columns, settings.limit)
    return []


def _comparisons(
    source: str, rows: Sequence[Any], settings: ExploreSettings, is_needed: bool
) -> list[Comparison]:
    """The comparisons in the file; [] if there are none and they are not needed."""
    columns = settings.columns if is_needed else _columns_of(COMPARISONS.names, settings)
    is_named = bool(columns.keys() - {*SPANS.names, *JUDGEMENTS.names})
    if not is_needed and not is_named and not fits_format("comparisons", rows):
        return []
    comparisons = COMPARISONS.read(source, columns, settings.limit)
    if any(comparison.pairs for comparison in comparisons):
        return comparisons
    if not is_needed:
        return []
    raise UserError(
        f"{source} has no decided pair in its {counted(len(comparisons), 'row')}, so there is"
        " nothing to explore: check its keys with `fgrlhf data show`"
    )


def _columns_of(names: Sequence[str], settings: ExploreSettings) -> dict[str, str | list[str]]:
    return {name: key for name, key in settings.columns.items() if name in names}


def filter_comparisons(source: str, out: str, settings: FilterSettings) -> None:
    """Write the comparisons without the pairs that the filters remove."""
    from fgrlhf.data.explore import drop_pairs  # takes seconds, and other actions do not need it

    check_input_and_output(source, out)
    comparisons = COMPARISONS.read(source, settings.columns, settings.limit)
    comparisons = drop_pairs(comparisons, settings.drop)
    write_rows(out, [COMPARISONS.to_row(comparison) for comparison in comparisons])
    print(f"{out}: {counted(len(comparisons), 'row')} of comparisons")
