"""ToTTo: describe the highlighted cells of a table in a sentence."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from fgrlhf.base.records import AnyText, Record, RowError, check_list, check_place, check_text, read
from fgrlhf.data.published import PublishedSet
from fgrlhf.data.rows import Row, look_up
from fgrlhf.metrics.parent import parent
from fgrlhf.text_types import Prompt
from tasks.text_task import HIDDEN_TEST, nothing, text_task


class Cell(Record):
    """A cell of a table."""

    value: AnyText
    column_span: Annotated[int, Field(ge=0, lt=10_000)]
    is_header: Any = False


def prompts(row: Row) -> list[dict[str, Any]]:
    """The highlighted cells with their headers, without and with the titles, as in RL4LMs.

    `table` and `records` are what PARENT compares a sentence with. Rows of the hidden test: none.
    """
    sentences = look_up(row.values, "sentence_annotations.final_sentence")
    references = [text for text in check_list("sentence_annotations", sentences) if text]
    if not references:
        return []
    page = row.text("table_page_title")
    section = row.text("table_section_title", may_be_blank=True)
    about = check_text("table_section_text", row.get("table_section_text") or "", True)
    table = read(list[list[Cell]], row.get("table"), "table")
    places = []
    for number, place in enumerate(check_list("highlighted_cells", row.get("highlighted_cells"))):
        places.append(checked_place(f"highlighted_cells[{number}]", place, table))
    cells = "".join(cell_text(table, line, column) for line, column in places)
    titled = {"page_title": page, "section_title": section}
    titles = "".join(f"<{tag}> {title} </{tag}> " for tag, title in titled.items() if title)
    values = [cell.value for line in table for cell in line]
    records = [table[line][column].value for line, column in places]
    return [
        {
            "prompt": f"<table> {cells}</table>{titles}<table> {cells}</table>",
            "references": references,
            "table": " ".join([*values, page, section, about]),
            "records": [text for text in [*records, page, section] if text.strip()],
        }
    ]


def checked_place(key: str, place: Any, table: Sequence[Sequence[Cell]]) -> tuple[int, int]:
    """Row and column of a cell. Raises `RowError`."""
    if len(check_list(key, place)) != 2:
        raise RowError(key, "must be [row, column]")
    line = check_place(f"{key}[0]", place[0], len(table), f"the table has {len(table)} rows")
    width = len(table[line])
    return line, check_place(f"{key}[1]", place[1], width, f"the row has {width} cells")


def cell_text(table: Sequence[Sequence[Cell]], line: int, column: int) -> str:
    """A cell, the headers above it and the headers to its left."""
    columns = covered(table[line])[column]
    text = f"<cell> {table[line][column].value} "
    for above in table[:line]:
        for cell, other in zip(above, covered(above)):
            if cell.is_header and set(other) & set(columns):
                text += f"<col_header> {cell.value} </col_header> "
    for cell in table[line][:column]:
        if cell.is_header:
            text += f"<row_header> {cell.value} </row_header> "
    return f"{text}</cell> "


def covered(cells: Sequence[Cell]) -> list[range]:
    """The columns that each cell of a row covers."""
    ranges = []
    start = 0
    for cell in cells:
        ranges.append(range(start, start + cell.column_span))
        start += cell.column_span
    return ranges


def table_agreement(prompt: Prompt, text: str) -> dict[str, float]:
    return {"parent": parent(text, prompt.references, prompt.meta["table"], prompt.meta["records"])}


TASK = text_task(
    "totto",
    PublishedSet(
        hub_name="google-research-datasets/totto",
        is_converted=True,
        parts=HIDDEN_TEST,
        prompts=prompts,
    ),
    headline=("parent", "meteor", "meteor_stem", "bleu/corpus"),
    core_text=nothing,
    metrics=lambda prompts: (table_agreement,),
    metric_names={"parent": "PARENT"},
)
