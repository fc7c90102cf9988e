"""ToTTo: highlighted cells with their headers, the prompt, and PARENT of a description."""

import pytest

from fgrlhf.base.records import RowError, read
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt
from tasks.totto.task import TASK, Cell, cell_text, prompts


def cell(value, header=False, span=1):
    return {"value": value, "is_header": header, "column_span": span, "row_span": 1}


TABLE = [
    [cell("All", True, span=3)],
    [cell("Year", True), cell("Title", True, span=2)],
    [cell("2012", True), cell("Paper"), cell("Moons")],
]
ROW = {
    "table": TABLE,
    "table_page_title": "Marla",
    "table_section_title": "Films",
    "table_section_text": "",
    "highlighted_cells": [[2, 2]],
    "sentence_annotations": {"final_sentence": ["In 2012: Moons."]},
}
CELLS = (
    "<table> <cell> Moons <col_header> All </col_header> <col_header> Title </col_header>"
    " <row_header> 2012 </row_header> </cell> </table>"
)
CELLS_OF_TABLE = read(list[list[Cell]], TABLE)


def test_a_cell_has_the_headers_above_and_to_its_left():
    assert f"<table> {cell_text(CELLS_OF_TABLE, 2, 2)}</table>" == CELLS
    # the year is a header itself, below the first header of two
    assert cell_text(CELLS_OF_TABLE, 2, 0) == (
        "<cell> 2012 <col_header> All </col_header> <col_header> Year </col_header> </cell> "
    )


def test_the_prompt_has_the_cells_without_and_with_the_titles():
    (row,) = prompts(Row(ROW, {}))
    titles = "<page_title> Marla </page_title> <section_title> Films </section_title> "
    assert row["prompt"] == CELLS + titles + CELLS
    assert row["references"] == ["In 2012: Moons."]
    assert row["records"] == ["Moons", "Marla", "Films"]
    assert " ".join(row["table"].split()) == "All Year Title 2012 Paper Moons Marla Films"


def test_both_forms_of_the_annotations():
    annotations = [{"final_sentence": "One."}, {"final_sentence": "Two."}]
    (row,) = prompts(Row({**ROW, "sentence_annotations": annotations}, {}))
    assert row["references"] == ["One.", "Two."]
    hidden = {"final_sentence": []}
    assert prompts(Row({**ROW, "sentence_annotations": hidden}, {})) == []


@pytest.mark.parametrize(
    "change, key",
    [
        ({"highlighted_cells": [[2, 3]]}, r"highlighted_cells\[0\]\[1\]"),
        ({"highlighted_cells": [[3, 0]]}, r"highlighted_cells\[0\]\[0\]"),
        ({"highlighted_cells": [[3]]}, r"highlighted_cells\[0\]"),
        ({"table": [[{"value": 1}]]}, r"table\[0\]\[0\].value"),
        ({"table": [[{"value": "a"}]]}, r"table\[0\]\[0\].column_span"),
        ({"table_page_title": None}, "table_page_title"),
        ({"sentence_annotations": {}}, "sentence_annotations.final_sentence"),
    ],
)
def test_malformed_rows(change, key):
    with pytest.raises(RowError, match=f"`{key}`"):
        prompts(Row({**ROW, **change}, {}))


def test_parent_of_a_description():
    (row,) = prompts(
        Row({**ROW, "sentence_annotations": [{"final_sentence": "Marla Films Moons"}]}, {})
    )
    prompt = Prompt("0", row["prompt"], tuple(row["references"]), row)
    (metric,) = TASK.metrics([prompt])
    assert metric(prompt, "Marla Films Moons")["parent"] > metric(prompt, "Marla sings")["parent"]
    assert metric(prompt, "unknown") == {"parent": 0.0}
