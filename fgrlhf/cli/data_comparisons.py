"""`fgrlhf data explore` and `fgrlhf data filter`: describe comparisons, and leave pairs out."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from fgrlhf.config import Count, FilePath, StrictModel
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.data.problems import counted
from fgrlhf.data.read import check_input_and_output, check_not_input, write_rows
from fgrlhf.errors import UserError
from fgrlhf.files import write_text

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


def explore_comparisons(source: str, settings: ExploreSettings) -> None:
    """Write a page of statistics of comparisons, and print its warnings."""
    # they take seconds, and other actions do not need them
    from fgrlhf.data.explore import explore
    from fgrlhf.data.explore_page import page, warnings

    check_not_input(source, settings.out)
    comparisons = COMPARISONS.read(source, settings.columns, settings.limit)
    if not any(comparison.pairs for comparison in comparisons):
        raise UserError(
            f"{source} has no decided pair in its {counted(len(comparisons), 'row')}, so there is"
            " nothing to explore: check its keys with `fgrlhf data show`"
        )
    exploration = explore(comparisons)
    print(f"{source}: {exploration.rows:,} rows, {exploration.pairs:,} decided pairs")
    for warning in warnings(exploration):
        print(f"  {warning}")
    write_text(settings.out, page(Path(source).name, exploration, comparisons))
    print(f"page: {settings.out}")


def filter_comparisons(source: str, out: str, settings: FilterSettings) -> None:
    """Write the comparisons without the pairs that the filters remove."""
    from fgrlhf.data.explore import drop_pairs  # takes seconds, and other actions do not need it

    check_input_and_output(source, out)
    comparisons = COMPARISONS.read(source, settings.columns, settings.limit)
    comparisons = drop_pairs(comparisons, settings.drop)
    write_rows(out, [COMPARISONS.to_row(comparison) for comparison in comparisons])
    print(f"{out}: {counted(len(comparisons), 'row')} of comparisons")
