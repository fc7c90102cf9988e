"""Items that annotators skip: rules, database, and the pages from disk and from the server."""

import json
from pathlib import Path

import pytest
from made_tasks import ROW, page_with, saved, task_with
from page_helpers import ITEM, QA, downloaded, opened, press, reload
from served_pages import visiting
from server_helpers import Client, serving
from test_database import DOC, Clock
from test_own_items import said
from test_schema import broken, changed

from fgrlhf.base.errors import UserError
from interface_html import export, judged_items, lead, submissions
from interface_html.assignments import Receipt, RefusedError
from interface_html.checks import Plan
from interface_html.connections import reading
from interface_html.database import Database
from interface_html.format import Item
from interface_html.schema import load_schema
from interface_html.skips import Skip, skip_problems
from interface_html.stored import read_database, stored_study

UNSURE = {"reason": "unsure", "text": ""}
ITEMS = [{**ITEM, "id": str(number), "question": f"Question {number}?"} for number in range(3)]


# ---- the rules -----------------------------------------------------------------------------------


def test_a_reason_is_one_of_the_schema_and_another_one_needs_a_text():
    assert skip_problems(QA.schema, UNSURE) == []
    assert skip_problems(QA.schema, {"reason": "other", "text": "The page is upside down."}) == []
    for skip, field in (
        ({"reason": "tired", "text": ""}, "reason"),
        ({"reason": "other", "text": " \n"}, "text"),
        ({"reason": "unsure", "text": "x" * 1001}, "text"),
    ):
        assert [problem for problem, _ in skip_problems(QA.schema, skip)] == [field]


def test_a_task_has_its_own_reasons_or_none(tmp_path):
    reasons = [{"name": "cropped", "label": "Cropped"}]
    schema = load_schema(changed(tmp_path, lambda tree: tree.update(skip_reasons=reasons)))
    assert skip_problems(schema, {"reason": "cropped", "text": ""}) == []
    assert skip_problems(schema, UNSURE) != []
    twice = broken(tmp_path, lambda tree: tree.update(skip_reasons=reasons * 2))
    assert "two skip reasons have the name 'cropped'" in twice
    none = load_schema(changed(tmp_path, lambda tree: tree.update(skip_reasons=[])))
    assert skip_problems(none, UNSURE) != []


# ---- the database --------------------------------------------------------------------------------


@pytest.fixture
def db(tmp_path):
    clock = Clock()
    database = Database(tmp_path / "f.sqlite", "t", per_item=1, lease_seconds=60, clock=clock)
    database.add_items([Item(str(i), {"text": f"text {i}"}) for i in range(2)])
    yield database
    database.close()


def submit(db, assignment, uuid, **more):
    return db.submit(assignment, uuid, DOC, Receipt(1.0, "1"), **more)


def test_a_skipped_item_goes_to_another_annotator(db):
    first = db.next("a", "annotation", 4)
    db.skip(first, "unsure", "why")
    assert db.next("a", "annotation", 4).item.id == "1"  # never the skipped one again
    assert db.next("b", "annotation", 4).item.id == first.item.id == "0"
    assert db.next("c", "annotation", 4) is None
    assert db.assignment(first.id, "a").skipped == {"reason": "unsure", "text": "why"}
    assert db.own_skips("a", "annotation") == {first.id: {"reason": "unsure", "text": "why"}}
    assert db.own_skips("b", "annotation") == db.own_skips("a", "comparison") == {}
    assert read_database(db.path, "t").skips == [
        Skip("0", "a", "annotation", "unsure", "why", 1000.0)
    ]


def test_late_drafts_do_not_take_a_skipped_item_back(db):
    first = db.next("a", "annotation", 4)
    db.skip(first, "unsure", "")
    db.save_draft(first, 0, {})
    assert db.next("b", "annotation", 4).item.id == "0"


def test_a_skip_is_undone(db):
    first = db.next("a", "annotation", 4)
    db.skip(first, "unsure", "")
    assert db.reopen(first)
    assert db.next("a", "annotation", 4).id == first.id
    assert db.next("b", "annotation", 4).item.id == "1"
    db.skip(first, "unsure", "")
    db.skip(db.next("b", "annotation", 4), "unsure", "")
    assert db.next("b", "annotation", 4).item.id == "0"
    assert not db.reopen(first)  # another annotator has it: what comes now is an extra judgement
    assert read_database(db.path, "t").skips[0].annotator == "b"


def test_submissions_of_a_skipped_item_do_not_count_until_it_is_reopened(db):
    first = db.next("a", "annotation", 4)
    submit(db, first, "1")
    with pytest.raises(RefusedError, match="submitted from another window"):
        db.skip(first, "unsure", "")  # by a page that does not know the submission
    assert db.assignment(first.id, "a").done
    db.skip(first, "unsure", "", seen=1)
    assert db.progress("a", "annotation") == (0, 1)  # the other item
    study = read_database(db.path, "t")
    assert len(study.all_submissions) == 1 and study.submissions == study.unskipped == []
    db.reopen(first)
    assert db.progress("a", "annotation") == (1, 2)
    assert read_database(db.path, "t").submissions == study.all_submissions
    db.skip(first, "unsure", "", seen=1)
    submit(db, first, "2", seen=1)  # submitting reopens it
    assert read_database(db.path, "t").skips == [] and db.assignment(first.id, "a").done


def test_a_file_that_is_no_database_is_told(tmp_path):
    (tmp_path / "x").write_text("no database" * 100)
    with pytest.raises(UserError, match="cannot be read"):
        read_database(tmp_path / "x", "t")


# ---- the server ----------------------------------------------------------------------------------


def test_the_server_checks_skips_and_leaves_them_out(tmp_path, capsys):
    with serving(tmp_path, items=3, per_item=2) as server:
        anna, ben = Client(server.port, "anna"), Client(server.port, "ben")
        for client in (anna, ben):
            given = client.next()
            assert client.call("POST", "/api/submissions", client.submission(given))[0] == 201
        path = f"/api/assignments/{given['id']}"  # ben's
        status, answer = ben.call("POST", f"{path}/skip", {"reason": "tired"})
        assert (status, answer["problems"][0]["field"]) == (422, "reason")
        assert anna.call("POST", f"{path}/skip", UNSURE)[0] == 404  # not hers
        body = {"reason": "other", "text": " ill "}
        status, answer = ben.call("POST", f"{path}/skip", body)
        assert status == 409 and "submitted from another window" in answer["error"]
        assert ben.call("POST", f"{path}/skip", {**body, "submissions": 1})[0] == 200
        listed = ben.call("GET", "/api/assignments?page=annotation")[1]["assignments"]
        skip = {"reason": "other", "text": "ill"}
        assert [(one["done"], one["skipped"]) for one in listed] == [(False, skip)]
        assert ben.call("GET", path)[1]["assignment"]["skipped"] == skip
        second = anna.next()
        assert second["skipped"] is None
        anna.call("POST", f"/api/assignments/{second['id']}/skip", UNSURE)
    out = str(tmp_path / "rows.json")
    settings = {"task": "qa_feedback", "db": str(server.db), "out": out}
    assert (
        export.export(export.FeedbackExportSettings(**settings, policy="all", pages="annotation"))
        == 1
    )
    text = "; left out 2 items without an annotation; 2 items skipped by 2 annotators\n"
    assert text in capsys.readouterr().out
    report = judged_items.judged_in_database(QA, str(server.db))
    assert [list(entry.annotations) for entry in report] == [["anna"], [], []]
    assert submissions.write_submissions(submissions.SubmissionsSettings(**settings)) == 2
    assert capsys.readouterr().out == f"{out}: 2 submissions; 2 skips\n"
    *_, line, last = [json.loads(text) for text in Path(out).read_text().splitlines()]
    assert (line["annotator"], line["item"], line["skipped"]) == ("ben", "i0", skip)
    assert (last["annotator"], last["skipped"]) == ("anna", UNSURE)


def test_skips_of_hidden_items_are_named_and_not_counted(tmp_path, capsys):
    path, out = tmp_path / "f.sqlite", tmp_path / "out"
    database = Database(path, "qa_feedback", plan=Plan(gold_every=2))
    texts = {key: value for key, value in ITEM.items() if key != "id"}
    database.add_items([Item("i0", texts)])
    right = {"errors": [], "missing-info": [], "corrected-prediction": ITEM["prediction 1"]}
    gold = {**texts, "question": "Gold?", "feedback": right}
    database.add_gold([(Item("g", gold), ["annotation"])])
    opened = []
    while given := database.next("anna", "annotation", 4):
        if given.item.id == "i0":
            database.submit(given, "a", {**right, "no-error": True}, Receipt(1.0, "1"))
        else:
            with reading(path) as sql:
                opened += lead.open_assignments(sql, 0.0)
            database.skip(given, "unsure", "")
    with reading(path) as sql:
        content = lead.summary(QA, stored_study(sql), lead.open_assignments(sql, 0.0), 1, 0.0)
    database.close()
    assert [(one.item, one.check) for one in opened] == [("g", "gold")]
    assert content["pages"][0]["annotators"][0]["skipped"] == 0
    settings = {"task": "qa_feedback", "db": str(path), "out": str(out)}
    export.export(export.FeedbackExportSettings(**settings, pages="annotation"))
    assert ": 1 row; left out 1 gold item and 0 repeated items\n" in capsys.readouterr().out
    submissions.write_submissions(submissions.SubmissionsSettings(**settings))
    skip = json.loads(out.read_text().splitlines()[-1])
    assert (skip["item"], skip["check"], skip["skipped"]) == ("g", "gold", UNSURE)


def test_a_judgement_that_came_with_a_skipped_item_is_left_out(tmp_path, capsys):
    """As on the page from disk. A submission of another annotator counts in its place."""
    path, out = tmp_path / "f.sqlite", tmp_path / "out.json"
    database = Database(path, "qa_feedback", per_item=2)
    given = {key: value for key, value in ITEM.items() if key != "id"}
    right = {"errors": [], "missing-info": [], "corrected-prediction": ITEM["prediction 1"]}
    given |= {"feedback": right, "preference": [1] * 6}
    database.add_items([Item(f"i{i}", {**given, "question": f"{i}?"}) for i in range(3)])
    for _ in range(2):
        database.skip(database.next("anna", "annotation", 4), "unsure", "")
    doc = {**right, "no-error": True, "corrected-prediction": ITEM["prediction 1"]}
    database.submit(database.next("ben", "annotation", 4), "b", doc, Receipt(1.0, "1"))
    database.close()
    settings = {"task": "qa_feedback", "db": str(path), "out": str(out)}
    assert export.export(export.FeedbackExportSettings(**settings, pages="annotation")) == 2
    rows = json.loads(out.read_text())
    assert [row["question"] for row in rows] == ["0?", "2?"]
    assert "left out 1 item without an annotation; 2 items skipped" in capsys.readouterr().out
    assert export.export(export.FeedbackExportSettings(**settings, pages="comparison")) == 3
    rows = json.loads(out.read_text())
    assert ["feedback" in row for row in rows] == [True, False, True]


def skip_by_keys(tab, *keys) -> None:
    press(tab, "s")
    tab.wait_for_selector("#skip-dialog[open]")
    press(tab, *keys)


def test_skipping_on_a_served_page(chromium, tmp_path):
    with serving(tmp_path, items=2) as server:
        with visiting(chromium, server) as tab:
            skip_by_keys(tab, "2", "Enter")
            said(tab, "Skipped. This is the next item.")
            assert tab.inner_text("#item-title") == "Question 1?"
            assert not tab.is_visible("#skipped")
            press(tab, "[")
            tab.wait_for_selector("#skipped:not([hidden])")
            assert "broken or cut off" in tab.inner_text("#skipped")
            assert "this item: skipped" in tab.inner_text("#position")
            assert Client(server.port, "ben").next()["item"]["question"] == "Question 0?"
            reload(tab)
            assert tab.inner_text("#item-title") == "Question 1?"
            press(tab, "[")
            tab.click("#skipped button")
            said(tab, "Reopened")
            assert "others have it now" in tab.inner_text("#notice")
            assert read_database(server.db, "qa_feedback").skips == []
            press(tab, "n", "Control+Enter")
            said(tab, "Submitted")
        assert [one.item for one in read_database(server.db, "qa_feedback").submissions] == ["i0"]


# ---- from disk -----------------------------------------------------------------------------------


def test_skipping_from_disk(chromium, tmp_path):
    with opened(chromium, items=ITEMS, tmp_path=tmp_path) as tab:
        press(tab, "n", "Control+Enter")
        skip_by_keys(tab, "6", "Enter")
        assert "explanation is blank" in tab.inner_text("#skip-dialog [role=alert]")
        assert tab.evaluate("document.activeElement.id") == "skip-text"
        tab.keyboard.type("It is 2 in the morning.")  # digits are text here
        press(tab, "Enter")
        assert "Skipped. This is the next item." in tab.inner_text("#message")
        rows = json.loads(downloaded(tab))
        assert [row["question"] for row in rows] == ["Question 0?"]
        text = "has 1 of 3 items. 1 not submitted yet is left out. 1 skipped item is left out."
        assert text in tab.inner_text("#notice")
        first, second = saved(tab, "#record")
        assert (first["id"], first["annotator"]) == ("0", "anna")
        assert (second["id"], second["annotator"], second["page"]) == ("1", "anna", "annotation")
        skipped = {key: second["skipped"][key] for key in ("reason", "text")}
        assert skipped == {"reason": "other", "text": "It is 2 in the morning."}
        write = tmp_path / "record.json"
        write.write_text(json.dumps([first, second]))
        assert judged_items.read_record(QA.schema, str(write), 1) == [first]
        press(tab, "n", "Control+Enter")
        assert "All items are done" in tab.inner_text("#notice")  # none is left to do
        reload(tab)
        press(tab, "[")
        assert "Item 2 of 3 (skipped), 2 done" in tab.inner_text("#position")
        assert "It is 2 in the morning." in tab.inner_text("#skipped")
        tab.click("#skipped button")
        assert "Item 2 of 3 (not submitted), 2 done" in tab.inner_text("#position")
        press(tab, "n", "Control+Enter")
        assert len(json.loads(downloaded(tab))) == 3


def test_the_dialog_can_be_left_and_a_submission_skipped_afterwards(chromium, tmp_path):
    with opened(chromium, items=ITEMS[:2], tmp_path=tmp_path) as tab:
        press(tab, "s", "Enter")
        assert "Choose a reason." in tab.inner_text("#skip-dialog")
        press(tab, "Escape")
        assert not tab.is_visible("#skip-dialog")
        assert "not submitted" in tab.inner_text("#position")
        press(tab, "n", "Control+Enter", "[")
        skip_by_keys(tab, "1", "Enter")
        press(tab, "n", "Control+Enter")
        assert [row["question"] for row in json.loads(downloaded(tab))] == ["Question 1?"]
        press(tab, "[")
        assert tab.is_visible("#skipped")
        press(tab, "Control+Enter")  # submitting again reopens it
        assert len(json.loads(downloaded(tab))) == 2


def test_a_task_without_reasons_cannot_skip(chromium, tmp_path):
    with opened(chromium, where=page_with(task_with(tmp_path, skip_reasons=[]), [ROW])) as tab:
        press(tab, "s")
        assert not tab.is_visible("#skip-dialog") and tab.locator("#skip").count() == 0


def test_reading_the_skips_of_a_missing_file_makes_no_file(tmp_path):
    with pytest.raises(UserError, match=r"gone\.sqlite does not exist: set db="):
        read_database(tmp_path / "gone.sqlite", "t")
    assert list(tmp_path.iterdir()) == []
