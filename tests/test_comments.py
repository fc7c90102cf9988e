"""The comment on an item: the rules, the rows, and both pages."""

import json

import pytest
from hostile import HOSTILE
from made_tasks import ROW, page_with, saved, task_with
from page_helpers import ITEM, QA, opened, press, reload, state, violations
from rating_tasks import QUALITY
from server_helpers import Client, serving
from test_annotation_page import ROW as QA_ROW
from test_served_pages import visiting

from fgrlhf.data.problems import DataError
from interface_html import export
from interface_html.format import Item
from interface_html.items import item_json, read_items, rows_text
from interface_html.ratings import rating_problems
from interface_html.rules import annotation_problems, comparison_problems
from interface_html.stored import read_database

TYPE = """text => {
    const field = document.querySelector("#comment");
    field.value = text;
    field.dispatchEvent(new Event("input"));
}"""
CLEAN = {
    "errors": [],
    "missing-info": [],
    "corrected-prediction": ROW["response"],
    "no-error": True,
}
COMPARED = {"preference": [0] * 6, "order": [0, 1, 2, 3]}


def test_only_tasks_with_comments_accept_them(tmp_path):
    asked, silent = task_with(tmp_path, comment="optional"), task_with(tmp_path, comment="none")
    row = asked.format.item_row(asked.schema, ROW, "")

    def fields(task, comment):
        document = {**CLEAN, "comment": comment}
        found = annotation_problems(task.schema, row, document)
        found += comparison_problems(task.schema, {**COMPARED, "comment": comment})
        return [field for field, _ in found]

    def rated(task, comment):
        document = {"ratings": {}, "order": [0, 1, 2, 3], "comment": comment}
        found = [field for field, _ in rating_problems(task.schema, document)]
        return [field for field in found if not field.startswith("ratings")]

    assert rated(asked, "Fine.") == [] and rated(asked, " ") == rated(silent, "Fine.")
    assert rated(silent, "Fine.") == ["comment"]
    assert fields(asked, "Fine.") == []
    assert fields(asked, " ") == fields(asked, 3) == ["feedback.comment", "comment"]
    assert fields(silent, "Fine.") == ["feedback.comment", "comment"]


def test_rows_have_the_comment_and_come_back(tmp_path):
    task = task_with(tmp_path, comment="optional")
    row = {**ROW, "spans": [], "missing": [], "correction": ROW["response"], "comment": "Sì 😀"}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]))
    (item,) = read_items(task, path)
    assert item.feedback["comment"] == "Sì 😀"
    assert rows_text([item_json(task, item)]) == rows_text([row])
    path.write_text(json.dumps([{**ROW, "comment": "of nothing"}]))
    with pytest.raises(DataError, match="comment: is a comment on `spans`"):
        read_items(task, path)
    other = task_with(tmp_path, comment="none")  # there it is a key like any other
    assert item_json(other, read_items(other, path)[0])["comment"] == "of nothing"


def test_rows_of_question_answering_have_none():
    item = Item("", {**QA_ROW, "feedback": {**CLEAN, "comment": "private"}})
    row = QA.format.feedback_row(QA.schema, item)
    without = QA.format.feedback_row(QA.schema, Item("", {**QA_ROW, "feedback": CLEAN}))
    assert json.dumps(row) == json.dumps(without) and "comment" not in row["feedback"]


def test_the_page_stores_the_comment_in_the_row_and_in_the_record(chromium, tmp_path):
    with opened(chromium, where=page_with(task_with(tmp_path, comment="optional"), [ROW])) as tab:
        press(tab, "n")
        tab.fill("#comment", "Hard to say.")
        reload(tab)
        assert tab.input_value("#comment") == "Hard to say."
        press(tab, "Control+Enter")
        (row,) = saved(tab, "#download")
        assert row["comment"] == "Hard to say."
        (entry,) = saved(tab, "#record")
        assert entry["comment"] == {"annotation": "Hard to say.", "comparison": None}
        tab.fill("#comment", "  ")
        assert "changed since submitted" in tab.inner_text("#position")
        press(tab, "Control+Enter")
        (row,) = saved(tab, "#download")
        assert "comment" not in row
        tab.focus("#text")
        press(tab, "Control+z")
        assert tab.input_value("#comment") == "Hard to say."


def test_a_file_with_a_comment_shows_it_and_a_page_without_has_no_field(chromium, tmp_path):
    row = {**ROW, "spans": [], "missing": [], "correction": ROW["response"], "comment": "Old."}
    page = page_with(task_with(tmp_path, comment="optional"), [row, {**ROW, "id": "s"}])
    with opened(chromium, where=page) as tab:
        assert tab.input_value("#comment") == "Old."
        press(tab, "]")
        assert tab.input_value("#comment") == ""
        assert saved(tab, "#download") == [row]
    with opened(chromium, where=page_with(task_with(tmp_path, comment="none"), [ROW])) as tab:
        assert tab.locator("#comment").count() == 0


def test_question_answering_keeps_its_bytes(chromium, tmp_path):
    with opened(chromium, tmp_path=tmp_path) as tab:
        press(tab, "n")
        tab.fill("#comment", "Only for the record.")
        press(tab, "Control+Enter")
        (row,) = saved(tab, "#download")
        assert set(row["feedback"]) == {"errors", "missing-info", "corrected-prediction"}
        (entry,) = saved(tab, "#record")
        assert entry["comment"]["annotation"] == "Only for the record."


def test_the_comparison_page_has_a_comment(chromium, tmp_path):
    with opened(chromium, "comparison", tmp_path=tmp_path) as tab:
        tab.fill("#comment", "All alike.")
        press(tab, "Escape", *"000000")
        assert tab.input_value("#comment") == "All alike."
        press(tab, "Control+Enter")
        (row,) = saved(tab, "#download")
        assert row == {**QA_ROW, "preference": [0] * 6}
        (entry,) = saved(tab, "#record")
        assert entry["comment"] == {"annotation": None, "comparison": "All alike."}


def test_the_server_stores_comments_and_exports_no_comment(chromium, tmp_path):
    with serving(tmp_path, items=1) as server:
        with visiting(chromium, server) as tab:
            press(tab, "n")
            tab.fill("#comment", "Note.")
            press(tab, "Control+Enter")
            tab.wait_for_selector("#empty:not([hidden])")
            press(tab, "Shift")
            tab.click("#previous")
            tab.wait_for_selector("#work:not([hidden])")
            assert tab.input_value("#comment") == "Note."
        client = Client(server.port, "anna")
        given = client.next("comparison")
        doc = {"preference": [0] * 6, "order": given["order"], "comment": "Equal."}
        body = client.submission(given, doc, "comparison")
        assert client.call("POST", "/api/submissions", body)[0] == 201
        docs = [entry.doc for entry in read_database(server.db, "qa_feedback").submissions]
        assert [document["comment"] for document in docs] == ["Note.", "Equal."]
    out = tmp_path / "rows.json"
    export.export(export.Settings(task="qa_feedback", db=str(server.db), out=str(out)))
    assert "comment" not in out.read_text() and ITEM["gold"] in out.read_text()


def test_the_rating_page_has_a_comment(chromium, tmp_path):
    task = task_with(tmp_path, ratings=[QUALITY], comment="optional")
    page = page_with(task, [ROW, {**ROW, "id": "s", "prompt": "Why?"}], "rating")
    with opened(chromium, where=page, bypass_csp=True) as tab:
        press(tab, *"1234")
        tab.fill("#comment", "Hard to say.")
        assert violations(tab) == []
        reload(tab)
        assert tab.input_value("#comment") == "Hard to say."
        press(tab, "Control+Enter")
        assert tab.input_value("#comment") == ""
        (row,) = saved(tab, "#download")
        assert "comment" not in row and len(row["ratings"]) == 4
        (entry,) = saved(tab, "#record")
        assert entry["comment"] == {
            "annotation": None,
            "comparison": None,
            "rating": "Hard to say.",
        }
        press(tab, "Escape", "[")
        tab.fill("#comment", "  ")
        assert "changed since submitted" in tab.inner_text("#position")
        press(tab, "Escape", "Control+z")
        assert tab.input_value("#comment") == "Hard to say."


def test_hostile_comments_stay_texts(chromium, tmp_path):
    task = task_with(tmp_path, ratings=[QUALITY], comment="optional")
    texts = [text for text in HOSTILE if "\r" not in text]
    for page in ("annotation", "comparison", "rating"):
        with opened(chromium, where=page_with(task, [ROW], page)) as tab:
            for text in texts[::6]:
                tab.evaluate(TYPE, text)
                assert tab.evaluate("document.querySelector('#comment').value") == text
                assert state(tab, page)["doc"].get("comment", text) == text
            assert tab.evaluate("window.hit") is None and tab.locator("#finish img").count() == 0
