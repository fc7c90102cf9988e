"""Comments on items and flags for the lead of the study: the rules, the rows, and all pages."""

import json

import pytest
from made_tasks import ROW, page_with, saved, task_with
from page_helpers import ITEM, QA, opened, press, reload, said, wait_until
from rating_tasks import QUALITY
from served_pages import visiting
from server_helpers import serving
from test_annotation_page import ROW as QA_ROW

from fgrlhf.base.records import DataError
from interface_html import export, submissions
from interface_html.format import Item
from interface_html.items import item_json, read_items, rows_text
from interface_html.ratings import rating_problems
from interface_html.rules import annotation_problems, comparison_problems

PAGES = {"annotation": "n", "comparison": "000000", "rating": "1234"}  # and the keys that judge
NO_ERROR = {"errors": [], "missing-info": [], "corrected-prediction": ROW["response"]}
CLEAN = {**NO_ERROR, "no-error": True}


@pytest.mark.parametrize("asked", ["optional", "none"])
def test_only_tasks_with_comments_accept_them_and_a_flag_is_a_boolean(tmp_path, asked):
    task = task_with(tmp_path, comment=asked)
    row = task.format.item_row(task.schema, ROW, "")

    def fields(**note) -> list[str]:
        order = {"order": [0, 1, 2, 3]}
        found = [*annotation_problems(task.schema, row, {**CLEAN, **note})]
        found += comparison_problems(task.schema, {"preference": [0] * 6, **order, **note})
        found += rating_problems(task.schema, {"ratings": {}, **order, **note})
        return [field for field, _ in found if not field.startswith("ratings")]

    everywhere = ["feedback.comment", "comment", "comment"]
    assert fields(comment="Fine.") == ([] if asked == "optional" else everywhere)
    assert fields(comment=" ") == fields(comment=3) == everywhere
    assert fields(flag=True) == fields(flag=False) == []
    for value in (None, 1, "true", []):
        assert fields(flag=value) == ["feedback.flag", "flag", "flag"]


def test_rows_have_the_comment_and_come_back(tmp_path):
    task = task_with(tmp_path, comment="optional")
    row = {**ROW, "spans": [], "missing": [], "correction": ROW["response"], "comment": "Sì 😀"}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]))
    (item,) = read_items(task, path)
    assert item.feedback["comment"] == "Sì 😀"
    assert rows_text([item_json(task, item)]) == rows_text([row])
    path.write_text(json.dumps([{**ROW, "comment": "of nothing"}]))
    with pytest.raises(DataError, match="`comment`: is a comment on `spans`"):
        read_items(task, path)
    other = task_with(tmp_path, comment="none")  # there it is a key like any other
    assert item_json(other, read_items(other, path)[0])["comment"] == "of nothing"


def test_rows_of_question_answering_keep_their_bytes():
    noted, plain = (
        QA.format.feedback_row(QA.schema, Item("", {**QA_ROW, "feedback": {**CLEAN, **notes}}))
        for notes in ({"flag": True, "comment": "private"}, {})
    )
    assert json.dumps(noted) == json.dumps(plain) and "comment" not in noted["feedback"]


@pytest.mark.parametrize("page", PAGES)
def test_notes_are_stored_and_in_the_record(chromium, tmp_path, page):
    task = task_with(tmp_path, ratings=[QUALITY], comment="optional")
    with opened(chromium, page, where=page_with(task, [ROW], page)) as tab:
        press(tab, *PAGES[page])
        tab.fill("#comment", "Hard to say.")
        reload(tab)
        assert tab.input_value("#comment") == "Hard to say."
        press(tab, "Escape", "Control+Enter")
        (row,) = saved(tab, "#download")
        assert row.get("comment") == ("Hard to say." if page == "annotation" else None)
        (entry,) = saved(tab, "#record")
        assert {key: value for key, value in entry["comment"].items() if value} == {
            page: "Hard to say."
        }
        assert entry["flag"][page] is False
        tab.check("#flag")
        assert "changed since submitted" in tab.inner_text("#position")
        reload(tab)
        assert tab.is_checked("#flag")
        press(tab, "Control+Enter")
        assert saved(tab, "#download") == [row]
        assert saved(tab, "#record")[0]["flag"][page] is True
        press(tab, "Control+z")
        assert not tab.is_checked("#flag")
        tab.fill("#comment", "  ")
        assert "changed since submitted" in tab.inner_text("#position")
        press(tab, "Escape", "Control+Enter")
        (blank,) = saved(tab, "#download")
        assert blank == {key: value for key, value in row.items() if key != "comment"}
        press(tab, "Escape", "Control+z")
        assert tab.input_value("#comment") == "Hard to say."


def test_comments_of_a_file_and_tasks_without(chromium, tmp_path):
    row = {**ROW, "spans": [], "missing": [], "correction": ROW["response"], "comment": "Old."}
    page = page_with(task_with(tmp_path, comment="optional"), [row, {**ROW, "id": "s"}])
    with opened(chromium, where=page) as tab:
        assert tab.input_value("#comment") == "Old."
        press(tab, "]")
        assert tab.input_value("#comment") == ""
        assert saved(tab, "#download") == [row]
    with opened(chromium, where=page_with(task_with(tmp_path, comment="none"), [ROW])) as tab:
        assert tab.locator("#comment").count() == 0


def test_rows_of_question_answering_have_no_notes(chromium, tmp_path):
    """Neither the rows that a page saves, nor those that the server exports."""
    judged = {"annotation": {"feedback": NO_ERROR}, "comparison": {"preference": [0] * 6}}
    for page, judgement in judged.items():
        with opened(chromium, page, tmp_path=tmp_path) as tab:
            press(tab, *PAGES[page])
            tab.fill("#comment", "Only for the record.")
            press(tab, "Escape", "Control+Enter")
            (row,) = saved(tab, "#download")
            assert row == {**QA_ROW, **judgement}
            assert saved(tab, "#record")[0]["comment"][page] == "Only for the record."
    with serving(tmp_path, items=2) as server:
        for page in judged:
            with visiting(chromium, server, page) as tab:
                tab.check("#flag")
                tab.fill("#comment", "Note.")
                press(tab, "Escape", *PAGES[page], "Control+Enter")
                said(tab, "Submitted")
                assert not tab.is_checked("#flag")
                press(tab, "[")
                wait_until(tab, "() => document.querySelector('#flag').checked")
                assert tab.input_value("#comment") == "Note."
    out = tmp_path / "all.jsonl"
    settings = {"task": "qa_feedback", "db": str(server.db), "out": str(out)}
    submissions.write_submissions(submissions.SubmissionsSettings(**settings))
    docs = [json.loads(line)["doc"] for line in out.read_text().splitlines()]
    assert [(doc["flag"], doc["comment"]) for doc in docs] == [(True, "Note.")] * 2
    export.export(export.FeedbackExportSettings(**settings))
    text = out.read_text()
    assert "flag" not in text and "comment" not in text and ITEM["gold"] in text
