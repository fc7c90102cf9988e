"""Export of a server's database: rows of one page, no rows, and all submissions."""

import json

import pytest
from page_helpers import ITEM

from fgrlhf.errors import UserError
from interface_html import export
from interface_html.database import Database, Receipt
from interface_html.format import Item
from interface_html.submissions import Settings, write_submissions


@pytest.fixture
def annotated(tmp_path):
    """A database of two items: one annotated twice by anna and once by ben, none compared."""
    database = Database(tmp_path / "f.sqlite", "qa_feedback", per_item=2, clock=lambda: 1000.5)
    row = {key: value for key, value in ITEM.items() if key != "id"}
    database.add_items([Item("0", row), Item("1", row)])
    doc = {"errors": [], "missing-info": [], "corrected-prediction": row["prediction 1"]}
    receipt = Receipt(2.5, "1", wall=9.0, guideline_sha256="abc")
    for name in ("anna", "ben"):
        given = database.next(name, "annotation", 4)
        assert database.submit(given, f"{name}-1", doc | {"no-error": True}, receipt)
    anna = database.assignment(1, "anna")
    assert database.submit(anna, "anna-2", doc | {"no-error": True}, receipt, seen=1)
    database.close()
    return tmp_path / "f.sqlite"


def export_of(annotated, **changes) -> int:
    out = annotated.with_name("out.json")
    values = {"task": "qa_feedback", "db": str(annotated), "out": str(out)} | changes
    return export.export(export.Settings(**values))


def test_annotations_alone_are_exported_on_request_and_no_row_is_an_error(annotated):
    with pytest.raises(UserError) as refused:
        export_of(annotated)
    text = str(refused.value)
    assert "no row to export: 2 items lack an annotation or a comparison" in text
    assert "pages=annotation would export 1 row" in text
    assert not annotated.with_name("out.json").exists()
    for policy, rows in (("latest", 1), ("first", 1), ("majority", 1), ("all", 2)):
        assert export_of(annotated, pages="annotation", policy=policy) == rows
    exported = json.loads(annotated.with_name("out.json").read_text())
    assert all("preference" not in row and "feedback" in row for row in exported)
    with pytest.raises(UserError, match="has no comparison page: set pages=annotation"):
        export.export(
            export.Settings(task="detoxification", db=str(annotated), out="x", pages="comparison")
        )


def test_all_submissions_as_json_lines(annotated, tmp_path):
    out = tmp_path / "all.jsonl"
    settings = Settings(task="qa_feedback", db=str(annotated), out=str(out))
    assert write_submissions(settings) == 3
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["annotator"], line["revision"]) for line in lines] == [
        ("anna", 1),
        ("ben", 1),
        ("anna", 2),
    ]
    assert lines[0]["seconds"] == {"active": 2.5, "wall": 9.0}
    assert lines[0]["created"] == "1970-01-01T00:16:40.500+00:00"
    assert (lines[0]["guideline"], lines[0]["guideline_sha256"]) == ("1", "abc")
    assert sorted(lines[0]["order"]) == [0, 1, 2, 3] and lines[0]["doc"]["errors"] == []
