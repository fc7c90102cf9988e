"""Reasons of marks: the schema, the rules, the rows, and the field on the page."""

import json

import pytest
from made_tasks import FLUENT, ROW, WRONG, page_with, saved, task_with
from made_tasks import annotation as doc
from made_tasks import wrong_fields as fields
from page_helpers import QA, drag, opened, press, reload, state, word
from test_schema import broken

from fgrlhf.data import span_rows
from fgrlhf.data.formats import SPANS
from interface_html.adjudicate import shared_marks
from interface_html.items import item_json, read_items, rows_text
from interface_html.judged import annotation_judgements
from interface_html.rules import LONGEST_REASON

NEEDED = {**WRONG, "reason": "required"}
ASKED = {**FLUENT, "name": "Odd", "letter": "O", "positive": False, "reason": "optional"}
PLAIN = {**WRONG, "name": "Typo", "letter": "T", "key": "3"}
KINDS = {"errors": [NEEDED, ASKED, PLAIN], "missing": [], "correction": False}
PLACE = ["feedback.errors[0].reason"]
LONGEST = "😀" * LONGEST_REASON
BROKEN = [None, 3, "", " \n\u3000", LONGEST + "x", ["why"]]
FIELD = "[data-key='errors-0-reason']"


def mark(kind: str, start: int = 4, end: int = 7, **parts) -> dict:
    return {"error type": kind, "explanation": "", "start": start, "end": end, **parts}


def test_a_kind_asks_in_one_of_three_ways(tmp_path):
    kind = {**NEEDED, "reason": "always"}
    assert "reason" in broken(tmp_path, lambda tree: tree.update(errors=[kind]))
    assert all(kind.reason == "none" for kind in QA.schema.errors)


@pytest.mark.parametrize("kind", ["Wrong", "Odd"])
def test_a_reason_is_a_text_that_is_not_blank(tmp_path, kind):
    task = task_with(tmp_path, **KINDS)
    for reason in ("It sat.", "Sì 😀\nline", LONGEST):
        assert fields(task, doc(mark(kind, reason=reason))) == []
    for reason in (*BROKEN, "\ud800"):
        assert fields(task, doc(mark(kind, reason=reason))) == PLACE, reason


def test_only_required_reasons_must_be_there(tmp_path):
    task = task_with(tmp_path, **KINDS)
    assert fields(task, doc(mark("Wrong"))) == PLACE
    assert fields(task, doc(mark("Odd"))) == []
    assert fields(task, doc(mark("Typo"))) == []


def test_other_kinds_refuse_a_reason(tmp_path):
    task = task_with(tmp_path, **KINDS)
    assert fields(task, doc(mark("Typo", reason="It is."))) == PLACE
    silent = task_with(tmp_path, **{**KINDS, "errors": [PLAIN]})
    assert fields(silent, doc(mark("Typo", reason="It is."))) == PLACE


def test_rows_have_the_reason_and_come_back(tmp_path):
    task = task_with(tmp_path, **KINDS)
    span = {"start": 4, "end": 7, "label": "Wrong", "reason": "It was a dog."}
    row = {**ROW, "spans": [span, {"start": 8, "end": 11, "label": "Odd"}]}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]))
    (item,) = read_items(task, path)
    assert item.feedback["errors"][0] == mark("Wrong", reason="It was a dog.")
    assert rows_text([item_json(task, item)]) == rows_text([row])
    (example,) = SPANS.read(path)
    assert [span.reason for span in example.spans] == ["It was a dog.", None]
    judgements = annotation_judgements(task.schema, span_rows.ROWS, "anna", item.feedback)
    assert [judgement.reason for judgement in judgements] == ["It was a dog.", None]


# ---- the page ------------------------------------------------------------------------------------


def test_reasons_on_the_page(chromium, tmp_path):
    spans = [
        {"start": 4, "end": 7, "label": "Wrong", "reason": "First."},
        {"start": 8, "end": 11, "label": "Wrong", "reason": "Second."},
    ]
    rows = [ROW, {**ROW, "id": "f", "spans": spans}]
    typed = "No cat,\nn 1 [ 😀"
    with opened(chromium, where=page_with(task_with(tmp_path, **KINDS), rows)) as tab:
        drag(tab, 1, 1)
        press(tab, "1")
        assert "Reason (required)" in tab.inner_text("#errors")
        tab.fill(FIELD, "  \n")
        press(tab, "Control+Enter")
        assert "Error 1 (Wrong): reason is missing: say why." in tab.inner_text("#problems")
        assert tab.evaluate("document.activeElement.dataset.key") == "errors-0-reason"
        tab.fill(FIELD, "x" * (LONGEST_REASON + 1))
        press(tab, "Control+Enter")
        assert "reason is too long: at most 1000 characters" in tab.inner_text("#problems")
        tab.fill(FIELD, "It was a dog.")
        word(tab, 1).click()
        press(tab, "2")  # another kind that asks: it stays
        assert tab.input_value(FIELD) == "It was a dog."
        assert "Reason (optional)" in tab.inner_text("#errors")
        press(tab, "3")
        assert tab.locator(FIELD).count() == 0
        assert "reason" not in state(tab)["doc"]["errors"][0]
        press(tab, "1")
        tab.click(FIELD)
        tab.keyboard.type(typed)
        assert tab.input_value(FIELD) == typed
        press(tab, "Control+z")
        assert tab.input_value(FIELD) == ""
        assert "reason" not in state(tab)["doc"]["errors"][0]
        press(tab, "Control+y")
        assert tab.input_value(FIELD) == typed
        reload(tab)
        assert tab.input_value(FIELD) == typed
        tab.focus(FIELD)
        press(tab, "Escape")
        assert tab.evaluate("document.activeElement.id") == "text"
        press(tab, "Control+Enter", "]")
        # the card of each mark of the next item has its own reason
        tab.click("[data-key='errors-0-remove']")
        assert tab.input_value(FIELD) == "Second."
        press(tab, "Control+z")
        assert tab.input_value(FIELD) == "First."
        first, second = saved(tab, "#download")
        assert first["spans"][0]["reason"] == typed
        assert second == rows[1]


def test_adjudicators_see_the_reasons(chromium, tmp_path):
    task = task_with(tmp_path, **KINDS)
    first = doc(mark("Wrong", reason="It was a dog."))
    second = doc(mark("Wrong", reason="<b>No</b> sitting."))
    text = ROW["response"]
    annotations = [{"annotator": name, **one} for name, one in (("a", first), ("b", second))]
    shared = shared_marks(task.schema, text, [first, second])
    row = {**ROW, "annotations": annotations, "shared": shared}
    with opened(chromium, where=page_with(task, [row])) as tab:
        shown = tab.inner_text("#annotations")
        assert "different reasons; no majority" in " ".join(shown.split())
        assert "because: “It was a dog.”" in shown and "“<b>No</b> sitting.”" in shown
        tab.click("[data-key='difference-1-1']")
        assert tab.input_value(FIELD) == "<b>No</b> sitting."
