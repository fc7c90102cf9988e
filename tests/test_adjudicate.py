"""Adjudication: disagreement and shared marks by hand, the export, and the page that starts."""

import json

import pytest
from page_helpers import ITEM, press, word
from server_helpers import Client, serving
from test_database import Clock
from test_rules import ROW, doc, error, missing
from test_served_pages import visiting

from fgrlhf.errors import UserError
from fgrlhf.files import write_json
from interface_html import export
from interface_html.adjudicate import (
    Settings,
    adjudicate,
    disagreement,
    read_decisions,
    shared_marks,
)
from interface_html.database import Database, Receipt
from interface_html.format import Item
from interface_html.items import read_items
from interface_html.submissions import Settings as LinesSettings
from interface_html.submissions import write_submissions
from interface_html.tasks import feedback_of

QA = feedback_of("qa_feedback")


def test_disagreement_by_hand():
    text = "abcd efgh"
    none, first, half = doc(), doc([error(start=0, end=4)]), doc([error(start=0, end=2)])
    assert disagreement(text, [none, none]) == 0
    assert disagreement(text, [first, first]) == 0
    assert disagreement(text, [first, none]) == 1
    assert disagreement(text, [first, half]) == pytest.approx(1 - 2 * 2 / (4 + 2))
    other = doc([error("Unverifiable", 0, 4)])
    assert disagreement(text, [first, other]) == 1
    # pairs: 4 of 8 characters twice, 0 of 4, 0 of 4
    assert disagreement(text, [first, first, none]) == pytest.approx(1 - 2 * 4 / (8 + 4 + 4))


def test_shared_marks_by_hand():
    a = doc([error(quote="The cat"), error("Unverifiable", 8, 11)], [missing(), missing(ids=(2,))])
    b = doc([error("Unverifiable", 8, 15), error()], [missing(ids=(2,))])
    shared = shared_marks(QA.schema, "text", [a, b])
    assert shared["errors"] == [error()]
    assert shared["missing-info"] == [missing(ids=(2,))]
    assert shared["corrected-prediction"] == "text"


@pytest.fixture
def study(tmp_path):
    """Item 0: the same marks; item 1: different ones; item 2: a single annotation."""
    database = Database(tmp_path / "f.sqlite", "qa_feedback", per_item=2, clock=Clock())
    rows = [{**ROW, "question": f"Question {i}?"} for i in range(3)]
    database.add_items([Item(str(i), row) for i, row in enumerate(rows)])
    first, second = doc([error()]), doc([error(), error("Unverifiable", 8, 15)])
    for name, docs in (("anna", [first, first, first]), ("ben", [first, second])):
        for content in docs:
            given = database.next(name, "annotation", 4)
            database.submit(given, f"{name}{given.item.id}", content, Receipt(1, "1"))
    database.close()
    return tmp_path


def test_items_come_by_disagreement_with_their_annotations(study):
    settings = Settings(
        task="qa_feedback", db=str(study / "f.sqlite"), out=str(study / "items.json")
    )
    assert [item.id for item in adjudicate(settings)] == ["1", "0"]
    first, second = read_items(QA, study / "items.json")
    assert [entry["annotator"] for entry in first.row["annotations"]] == ["anna", "ben"]
    assert [len(entry["errors"]) for entry in first.row["annotations"]] == [1, 2]
    assert first.row["shared"]["errors"] == [error()] and first.feedback is None
    assert second.id == "0"


def decided(study, content):
    """The database of an adjudication in which item 1 was decided."""
    settings = Settings(
        task="qa_feedback", db=str(study / "f.sqlite"), out=str(study / "items.json")
    )
    adjudicate(settings)
    database = Database(study / "a.sqlite", "qa_feedback", clock=Clock())
    database.add_items(read_items(QA, study / "items.json"))
    given = database.next("cleo", "annotation", 4)
    assert given.item.id == "1"
    database.submit(given, "cleo1", content, Receipt(1, "1"))
    database.close()
    return str(study / "a.sqlite")


def test_the_export_takes_decisions_before_the_majority(study, capsys):
    third = doc([error("Incoherent", 0, 3)])
    values = {
        "task": "qa_feedback",
        "db": str(study / "f.sqlite"),
        "out": str(study / "o.json"),
        "pages": "annotation",
    }
    export.export(export.Settings(**values, policy="majority"))
    majority = json.loads((study / "o.json").read_text())
    path = decided(study, third)
    export.export(export.Settings(**values, policy="adjudicated", adjudicated=path))
    rows = json.loads((study / "o.json").read_text())
    assert [row["feedback"]["errors"] for row in rows] == [[error()], third["errors"], [error()]]
    assert [rows[0], rows[2]] == [majority[0], majority[2]] and rows[1].keys() == majority[1].keys()
    assert "1 adjudicated item" in capsys.readouterr().out
    lines = LinesSettings(task="qa_feedback", db=path, out=str(study / "lines.jsonl"))
    assert write_submissions(lines) == 1
    assert json.loads((study / "lines.jsonl").read_text())["role"] == "adjudicator"


def test_a_decision_counts_whatever_the_weight_of_its_adjudicator(study):
    values = {"task": "qa_feedback", "db": str(study / "f.sqlite"), "out": str(study / "o.json")}
    path = decided(study, doc([error("Incoherent", 0, 3)]))
    figures = {"items": 1, "labels": 1, "accuracy": 1.0, "balanced_accuracy": 0.5}
    figures |= {"undefined": None, "repeated_labels": 0, "consistency": None}
    weights = {"anna": 2.0, "ben": 2.0, "cleo": 0.0}
    pages = {name: {"annotation": {**figures, "weight": w}} for name, w in weights.items()}
    write_json(study / "r.json", {"task": "qa_feedback", "right": "gold", "annotators": pages})
    settings = export.Settings(
        **values,
        pages="annotation",
        policy="adjudicated",
        adjudicated=path,
        weights=str(study / "r.json"),
        least_weight=1.0,
    )
    export.export(settings)
    rows = json.loads((study / "o.json").read_text())
    assert [entry["error type"] for entry in rows[1]["feedback"]["errors"]] == ["Incoherent"]


def test_wrong_databases_are_refused(study):
    values = {"task": "qa_feedback", "db": str(study / "f.sqlite"), "out": str(study / "o.json")}
    with pytest.raises(UserError, match="belong together"):
        export.export(export.Settings(**values, policy="adjudicated"))
    items = [Item("0", ROW)]
    with pytest.raises(UserError, match="item '0' has no annotations to decide between"):
        read_decisions(QA, items, values["db"])
    path = decided(study, doc([error()]))
    with pytest.raises(UserError, match="item '1' is not in db=... with the same texts"):
        read_decisions(QA, items, path)
    with pytest.raises(UserError, match="has no item with two annotations"):
        adjudicate(Settings(task="qa_feedback", db=path, out=str(study / "x.json")))


def test_the_page_starts_from_the_shared_marks(chromium, tmp_path):
    shared = {"errors": [error()], "missing-info": [], "corrected-prediction": ITEM["prediction 1"]}
    rows = [{**ITEM, "annotations": [], "shared": shared}]
    rows.append({**rows[0], "id": "two", "shared": {**shared, "errors": []}})
    write_json(tmp_path / "items.json", rows)
    with serving(tmp_path, items=tmp_path / "items.json") as server:
        with visiting(chromium, server) as tab:
            assert tab.locator("#text .w.marked").count() == 2
            assert "not submitted" in tab.text_content("#position")
            assert not tab.is_checked("#no-error")
            word(tab, 4).click()
            press(tab, "3")
        client = Client(server.port, "anna")
        given = client.next()
        assert given["item"]["shared"] == shared
