"""Severities of errors: the schema, the rules, the rows, and the choices on the page."""

import json
from functools import partial

import pytest
from made_tasks import ROW, SEVERITIES, annotation, page_with, saved, schema_json, task_with
from made_tasks import wrong_fields as fields
from page_helpers import QA, badge, drag, opened, press, reload, word
from test_schema import broken

from fgrlhf.data.formats import SPANS
from interface_html.format import Item
from interface_html.items import item_json, read_items, rows_text
from interface_html.rules import annotation_problems

doc = partial(annotation, corrected="Mended.")

IRRELEVANT = {"error type": "Irrelevant", "explanation": "", "start": 4, "end": 11}
SPAN = {"start": 4, "end": 11, "label": "Irrelevant"}


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"severities": [{**SEVERITIES[0], "key": "N"}]}, "the key 'N'"),
        ({"severities": [{**SEVERITIES[0], "key": "Shift+S"}]}, "S is a key of the annotation"),
        ({"severities": [{**SEVERITIES[0], "key": "1"}]}, "key"),
        (
            {"severities": [SEVERITIES[0], {**SEVERITIES[1], "key": "M"}]},
            "two severities have the key 'M'",
        ),
        (
            {"severities": [SEVERITIES[0], {**SEVERITIES[1], "name": "minor"}]},
            "two severities have the name 'minor'",
        ),
        ({"severity_required": True}, "`severity_required` needs `severities`"),
        ({"severities": SEVERITIES, "errors": []}, "are for errors"),
    ],
)
def test_clashes_in_the_schema_are_named(tmp_path, keys, message):
    assert message in broken(tmp_path, lambda tree: tree.update(**keys))


@pytest.mark.parametrize(
    "severities, expected",
    [
        (
            ["minor", {"name": "major"}, {"name": "severe", "letter": "m", "key": "Shift+M"}],
            [("minor", "i", "M"), ("major", "a", "A"), ("severe", "m", "Shift+M")],
        ),
        (["neutral", "noise"], [("neutral", "n", "U"), ("noise", "o", "O")]),
        ([{"name": "x", "label": "Ex", "key": "B"}], [("Ex", "x", "B")]),
    ],
)
def test_severities_have_defaults_on_the_page_too(chromium, tmp_path, severities, expected):
    task = task_with(tmp_path, severities=severities)
    found = [(one.label, one.letter, one.key) for one in task.schema.severities]
    assert found == expected
    function = """schema => FG.severities(schema).map(({ label, letter, key }) =>
        [label, letter, key])"""
    with opened(chromium, items=None) as tab:
        in_browser = tab.evaluate(function, schema_json(task))
    assert [tuple(one) for one in in_browser] == expected


def test_a_severity_without_a_free_letter_needs_one(tmp_path):
    message = broken(tmp_path, lambda tree: tree.update(severities=["a", "\u91cd"]))
    assert "severities.1.letter: missing" in message
    assert "severities.1.key: missing" in message


def test_a_severity_is_one_of_the_schema(tmp_path):
    task = task_with(tmp_path, severities=SEVERITIES)
    assert fields(task, doc(IRRELEVANT)) == []
    assert fields(task, doc({**IRRELEVANT, "severity": "minor"})) == []
    place = ["feedback.errors[0].severity"]
    assert fields(task, doc({**IRRELEVANT, "severity": "huge"})) == place
    assert fields(task, doc({**IRRELEVANT, "severity": None})) == place
    assert fields(task_with(tmp_path), doc({**IRRELEVANT, "severity": "minor"})) == place


def test_a_required_severity_must_be_there(tmp_path):
    task = task_with(tmp_path, severities=SEVERITIES, severity_required=True)
    assert fields(task, doc(IRRELEVANT)) == ["feedback.errors[0].severity"]
    assert fields(task, doc({**IRRELEVANT, "severity": "major"})) == []


def test_rows_have_the_severity_and_come_back(tmp_path):
    task = task_with(tmp_path, severities=SEVERITIES)
    spans = [{**SPAN, "severity": "major"}, {"start": 15, "end": 18, "label": "Irrelevant"}]
    row = {**ROW, "spans": spans, "missing": [], "correction": "Mended."}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]))
    (item,) = read_items(task, path)
    assert rows_text([item_json(task, item)]) == rows_text([row])
    (example,) = SPANS.read(path)
    assert [span.severity for span in example.spans] == ["major", None]


def test_question_answering_has_no_severities():
    assert QA.schema.severities == ()
    error = {**IRRELEVANT, "severity": "minor"}
    item = Item("", {"feedback": doc(error)})
    assert "severity" in QA.format.feedback_row(QA.schema, item)["feedback"]["errors"][0]
    row = {"prediction 1": ROW["response"], "passages": []}
    assert [field for field, _ in annotation_problems(QA.schema, row, doc(error))] == [
        "feedback.errors[0].severity"
    ]


def marked_page(tmp_path, **keys):
    return page_with(task_with(tmp_path, severities=SEVERITIES, correction=False, **keys), [ROW])


def test_work_can_be_submitted_after_the_schema_has_lost_a_kind_and_severities(chromium, tmp_path):
    page = marked_page(tmp_path, comment="optional")
    with opened(chromium, where=page) as tab:
        drag(tab, 1, 2)
        press(tab, "1", "m")
        drag(tab, 4, 4)
        press(tab, "4", "m")
        tab.fill("#comment", "Hard.")
        press(tab, "Escape", "Control+Enter")
        kinds = QA.schema.model_dump(mode="json")["errors"]
        changes = {"errors": kinds[1:], "comment": "none", "correction": False}
        newer = page_with(task_with(tmp_path, **changes), [ROW])
        assert newer == page
        reload(tab)
        assert tab.locator("#errors > li").count() == 1
        assert "changed since submitted" in tab.inner_text("#position")
        press(tab, "Control+Enter")
        (row,) = saved(tab, "#download")
        (span,) = row["spans"]
        assert (span["label"], "severity" in span, "comment" in row) == (
            "Unverifiable",
            False,
            False,
        )


def test_a_severity_is_chosen_kept_and_taken_back(chromium, tmp_path):
    row = {**ROW, "id": "f", "spans": [{**SPAN, "severity": "major"}], "missing": []}
    task = task_with(tmp_path, severities=SEVERITIES, correction=False)
    with opened(chromium, where=page_with(task, [ROW, row])) as tab:
        press(tab, "m")
        assert "move to an error first" in tab.inner_text("#message")
        drag(tab, 1, 2)
        press(tab, "1", "Shift+M")
        assert "error 1 (irrelevant) is major" in tab.inner_text("#message").lower()
        assert badge(word(tab, 1)) == "I1j"
        press(tab, "m")
        assert badge(word(tab, 1)) == "I1m"
        kinds = [kind.key for kind in QA.schema.errors if kind.needs == "nothing"]
        word(tab, 1).click()
        press(tab, kinds[-1])  # it stays with another kind
        assert badge(word(tab, 1)).endswith("1m")
        press(tab, "m")
        assert badge(word(tab, 1)).endswith("1")
        assert "has no severity" in tab.inner_text("#message")
        press(tab, "1", "m")
        drag(tab, 4, 4)
        press(tab, "1")
        tab.click("[data-key='errors-1-severity-major']")
        pressed = tab.locator("#errors .severity[aria-pressed='true']").all_inner_texts()
        assert [text.split()[0] for text in pressed] == ["Minor", "Major"]
        press(tab, "Control+z", "Control+z", "Control+y")  # the kind stays, the severity goes
        press(tab, "Control+y", "Control+Enter", "]")
        assert badge(word(tab, 1)) == "I1j"  # the next item has it from the file
        first, second = saved(tab, "#download")
        assert first["spans"][0] == {**SPAN, "severity": "minor"}
        assert first["spans"][1]["severity"] == "major"
        assert second == row


def test_a_missing_severity_prevents_the_submission(chromium, tmp_path):
    with opened(chromium, where=marked_page(tmp_path, severity_required=True)) as tab:
        drag(tab, 1, 2)
        press(tab, "1", "Control+Enter")
        assert "severity is missing: choose minor or major" in tab.inner_text("#problems")
        key = tab.evaluate("document.activeElement.dataset.key")
        assert key == "errors-0-severity-minor"
        press(tab, "Enter", "m")  # a required severity is never taken back
        assert badge(word(tab, 1)) == "I1m"
        press(tab, "Control+Enter")
        assert "Submitted" in tab.inner_text("#message")
