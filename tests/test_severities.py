"""Severities of errors: the schema, the rules, the rows, and the choices on the page."""

import json
import random

import pytest
from made_tasks import ROW, check_rules_in_browser, page_with, saved, task_with
from page_helpers import QA, badge, drag, opened, press, reload, violations, word
from test_schema import broken

from fgrlhf.data.formats import SPANS
from interface_html.format import Item
from interface_html.items import item_json, read_items, rows_text
from interface_html.rules import annotation_problems

SEVERITIES = [
    {"name": "minor", "label": "Minor", "letter": "m", "key": "M"},
    {"name": "major", "label": "Major", "letter": "j", "key": "Shift+M"},
]
NAMES = ["minor", "major"]
IRRELEVANT = {"error type": "Irrelevant", "explanation": "", "start": 4, "end": 11}
SPAN = {"start": 4, "end": 11, "label": "Irrelevant"}


def doc(*errors) -> dict:
    return {
        "errors": list(errors),
        "missing-info": [],
        "corrected-prediction": "Mended.",
        "no-error": False,
    }


def fields(task, document) -> list[str]:
    row = task.format.item_row(task.schema, ROW, "")
    return [field for field, _ in annotation_problems(task.schema, row, document)]


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
            [
                ("minor", "i", "M"),
                ("major", "a", "A"),
                ("severe", "m", "Shift+M"),
            ],
        ),
        (["neutral", "noise"], [("neutral", "n", "U"), ("noise", "o", "O")]),
        ([{"name": "x", "label": "Ex", "key": "B"}], [("Ex", "x", "B")]),
    ],
)
def test_severities_have_defaults_on_the_page_too(chromium, tmp_path, severities, expected):
    task = task_with(tmp_path, severities=severities)
    found = [(one.label, one.letter, one.key) for one in task.schema.severities]
    assert found == expected
    with opened(chromium, where=page_with(task, [ROW])) as tab:
        in_browser = tab.evaluate(
            "FG.severities(FG_SCHEMA).map(({ label, letter, key }) => [label, letter, key])"
        )
        assert [tuple(one) for one in in_browser] == expected
        drag(tab, 1, 2)
        press(tab, "1", expected[0][2].lower())
        assert badge(word(tab, 1)) == f"I1{expected[0][1]}"


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


@pytest.mark.parametrize("is_required", [False, True])
def test_the_rules_are_the_same_in_the_browser(chromium, tmp_path, is_required):
    keys = {"severities": SEVERITIES, "severity_required": is_required, "comment": "optional"}
    task = task_with(tmp_path, **keys)
    rng = random.Random(1)
    docs = []
    for _ in range(200):
        error = dict(IRRELEVANT)
        if rng.random() < 0.8:
            error["severity"] = rng.choice(["minor", "major", "huge", ""])
        document = doc(error)
        if rng.random() < 0.5:
            document["comment"] = rng.choice(["text", "", " \n", "\u3000"])
        docs.append(document)
    check_rules_in_browser(chromium, task, ROW, docs)


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


def test_keys_and_buttons_choose_a_severity(chromium, tmp_path):
    with opened(chromium, where=marked_page(tmp_path)) as tab:
        press(tab, "m")
        assert "move to an error first" in tab.inner_text("#message")
        drag(tab, 1, 2)
        press(tab, "1", "Shift+M")
        assert "error 1 (irrelevant) is major" in tab.inner_text("#message").lower()
        assert badge(word(tab, 1)) == "I1j"
        press(tab, "m")
        assert badge(word(tab, 1)) == "I1m"
        drag(tab, 4, 4)
        press(tab, "1")
        tab.click("[data-key='errors-1-severity-major']")
        pressed = tab.locator("#errors .severity[aria-pressed='true']").all_inner_texts()
        assert [text.split()[0] for text in pressed] == ["Minor", "Major"]
        press(tab, "Control+z", "Control+z", "Control+y")  # the kind stays, the severity goes
        press(tab, "Control+y", "Control+Enter")
        (row,) = saved(tab, "#download")
        first, second = row["spans"]
        assert first == {**SPAN, "severity": "minor"}
        assert second["severity"] == "major"


def test_the_chosen_severity_is_taken_back_and_stays_with_another_kind(chromium, tmp_path):
    with opened(chromium, where=marked_page(tmp_path)) as tab:
        drag(tab, 1, 2)
        press(tab, "1", "m")
        kinds = [kind.key for kind in QA.schema.errors if kind.needs == "nothing"]
        word(tab, 1).click()
        press(tab, kinds[-1])
        assert badge(word(tab, 1)).endswith("1m")
        press(tab, "m")
        assert badge(word(tab, 1)).endswith("1")
        assert "has no severity" in tab.inner_text("#message")


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


def test_a_file_with_severities_shows_them(chromium, tmp_path):
    row = {**ROW, "spans": [{**SPAN, "severity": "major"}], "missing": []}
    task = task_with(tmp_path, severities=SEVERITIES, correction=False)
    with opened(chromium, where=page_with(task, [row]), bypass_csp=True) as tab:
        assert badge(word(tab, 1)) == "I1j"
        assert violations(tab) == []
        assert saved(tab, "#download") == [row]
