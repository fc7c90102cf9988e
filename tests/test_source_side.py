"""Marks in the source, such as omissions: the schema, the rules, the rows, and the page."""

import json

import pytest
from made_tasks import OMISSION, ROW, WRONG, page_with, saved, task_with
from made_tasks import annotation as doc
from page_helpers import QA, badge, drag, drag_between, opened, press, state, word
from test_liked_spans import submission
from test_schema import broken

from fgrlhf.base.files import write_json
from fgrlhf.base.records import DataError, RowError
from fgrlhf.data.formats import SPANS
from fgrlhf.data.rows import Row
from interface_html.adjudicate import items_to_adjudicate
from interface_html.agreement_figures import report
from interface_html.annotator_pairs import pair_agreements
from interface_html.format import Item
from interface_html.items import item_json, read_items, rows_text
from interface_html.judged_items import JudgedItem
from interface_html.rules import annotation_problems, character_labels, side_of
from interface_html.suggestions import item_suggestion_problems
from interface_html.tasks import feedback_of
from interface_html.votes import judged_items

SOURCE_KIND = {**OMISSION, "key": "2"}
KINDS = {"errors": [WRONG, SOURCE_KIND], "missing": [], "correction": False}
SOURCE = "😀 who sat on the red mat?"
SOURCE_ROW = {**ROW, "prompt": SOURCE}


def wrong(start: int, end: int) -> dict:
    return {"error type": "Wrong", "explanation": "", "start": start, "end": end}


def omission(start: int, end: int) -> dict:
    return {**wrong(start, end), "error type": "Omission", "side": "source"}


def problems(task, document) -> list[tuple[str, str]]:
    row = task.format.item_row(task.schema, SOURCE_ROW, "")
    return list(annotation_problems(task.schema, row, document))


def fields(task, document) -> list[str]:
    return [field for field, _ in problems(task, document)]


def test_a_kind_of_the_source_needs_no_evidence(tmp_path):
    kind = {**SOURCE_KIND, "needs": "earlier text"}
    message = broken(tmp_path, lambda tree: tree.update(errors=[kind]))
    assert "Omission is marked in the source: its `needs` must be nothing" in message


def test_a_mark_is_checked_against_the_text_of_its_side(tmp_path):
    task = task_with(tmp_path, **KINDS)
    assert fields(task, doc(omission(0, 1), omission(2, 5))) == []
    length = len(SOURCE)
    beyond = problems(task, doc(omission(2, length + 1)))
    reason = f"{length + 1} is out of range: question has {length} characters"
    assert beyond == [("feedback.errors[0].end", reason)]
    assert fields(task, doc(omission(3, 5))) == ["feedback.errors[0].start"]
    assert fields(task, doc(wrong(4, 7), {**omission(2, 5), "quote": "who"})) == []
    assert fields(task, doc({**omission(2, 5), "quote": "The"})) == ["feedback.errors[0].quote"]


def test_the_side_is_that_of_the_kind(tmp_path):
    task, place = task_with(tmp_path, **KINDS), ["feedback.errors[0].side"]
    without_side = {key: value for key, value in omission(2, 5).items() if key != "side"}
    assert fields(task, doc(without_side)) == place
    assert fields(task, doc({**wrong(4, 7), "side": "source"})) == place
    assert fields(task, doc({**wrong(4, 7), "side": "response"})) == place
    assert fields(task, doc({**omission(2, 5), "side": None})) == place
    plain = task_with(tmp_path, errors=[WRONG], missing=[], correction=False)
    assert fields(plain, doc({**wrong(4, 7), "side": "source"})) == place


def test_marks_of_different_sides_do_not_overlap(tmp_path):
    task = task_with(tmp_path, **KINDS)
    assert fields(task, doc(wrong(0, 7), omission(0, 5))) == []
    assert fields(task, doc(omission(0, 5), wrong(0, 7), omission(2, 9))) == ["feedback.errors[2]"]


def test_labels_of_the_response_have_no_marks_of_the_source():
    assert (
        character_labels("The cat", doc(wrong(0, 3), omission(4, 7))) == ["Wrong"] * 3 + [None] * 4
    )
    assert side_of(omission(0, 1)) == "source" and side_of(wrong(0, 1)) == "response"


def test_marks_of_the_source_count_in_the_majority_and_in_disagreements(tmp_path):
    task = task_with(tmp_path, **KINDS)
    row = task.format.item_row(task.schema, SOURCE_ROW, "")
    items = [Item(name, {**row, "prompt": f"{SOURCE} {name}"}) for name in ("0", "1")]
    docs = {"anna": doc(), "ben": doc(omission(2, 5)), "cleo": doc(omission(2, 5))}
    given = [submission("0", name, doc()) for name in docs]
    given += [submission("1", name, value) for name, value in docs.items()]
    judged, _ = judged_items(task.schema, items, given, "majority", ["annotation"])
    assert [len(item.feedback["errors"]) for item in judged] == [0, 1]
    assert [item.id for item in items_to_adjudicate(task.schema, items, given)] == ["1"]


def test_marks_of_the_source_count_in_the_agreement(tmp_path):
    task = task_with(tmp_path, **KINDS)
    item = Item("0", task.format.item_row(task.schema, SOURCE_ROW, ""))
    docs = {"anna": doc(omission(2, 5)), "ben": doc(omission(2, 9))}
    judged = [JudgedItem(item, docs)]
    # 3 of 3 characters, and 3 of 7
    figure = report(task, judged)["span F, MPP, positions and types"]
    assert figure.mean == pytest.approx((1 + 3 / 7) / 2)
    assert pair_agreements(task.schema, judged)[0].span_f1 == 1


def test_suggestions_are_about_the_response(tmp_path):
    task = task_with(tmp_path, **KINDS)
    suggestion = {"type": "Wrong", "start": 0, "end": 3, "explanation": "", "score": 1.0}
    suggestion["source"] = "model"
    row = task.format.item_row(task.schema, SOURCE_ROW, "")
    assert not list(item_suggestion_problems(task.schema, {**row, "suggestions": [suggestion]}))
    of_source = {**suggestion, "type": "Omission"}
    found = list(item_suggestion_problems(task.schema, {**row, "suggestions": [of_source]}))
    assert [field for field, _ in found] == ["suggestions[0].type"]


def source_span(start, end, label="Omission"):
    return {"start": start, "end": end, "label": label, "side": "source"}


SPANS_OF_BOTH = [source_span(2, 5), {"start": 4, "end": 7, "label": "Wrong"}]


def test_rows_have_the_marks_of_the_source_and_come_back(tmp_path):
    task = task_with(tmp_path, **KINDS)
    row = {**SOURCE_ROW, "spans": SPANS_OF_BOTH}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]))
    (item,) = read_items(task, path)
    assert item.feedback["errors"] == [omission(2, 5), wrong(4, 7)]
    written = item_json(task, item)
    assert {key: written[key] for key in row} == row
    assert rows_text([written]) == rows_text([item_json(task, item)])
    (example,) = SPANS.read(path)
    assert [(span.start, span.side) for span in example.spans] == [(2, "source"), (4, "response")]


@pytest.mark.parametrize(
    "span, message",
    [
        (source_span(2, 99), "spans[0].end"),
        (source_span(2, 5, "Wrong"), "spans[0].side"),
        ({**source_span(2, 5), "side": "left"}, "spans[0].side"),
        (source_span(2, 5, "New"), "spans[0].label"),
    ],
)
def test_wrong_marks_in_a_row_are_named(tmp_path, span, message):
    task = task_with(tmp_path, **KINDS)
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{**SOURCE_ROW, "spans": [span]}]))
    with pytest.raises(Exception, match="row 0") as error:
        read_items(task, path)
    assert message in str(error.value)


@pytest.fixture
def page(tmp_path):
    return page_with(task_with(tmp_path, **KINDS), [SOURCE_ROW])


def source_word(tab, number: int):
    return tab.locator(f"#source .w[data-i='{number}']")


def test_marks_in_both_texts(chromium, page):
    with opened(chromium, where=page) as tab:
        marks = lambda: state(tab)["doc"]["errors"]  # noqa: E731
        tab.focus("#source")
        press(tab, "ArrowRight")
        assert "“who”, word 2 of 7 of the source, not marked" in tab.text_content("#announce")
        press(tab, "Shift+ArrowRight", "2", "Alt+ArrowRight")
        assert marks() == [omission(2, 12)]
        assert "marked: error 1 (Omission)" not in tab.text_content("#announce")
        press(tab, "Escape", "ArrowLeft")
        assert "of the source, marked: error 1 (Omission)" in tab.text_content("#announce")
        press(tab, "Control+z")
        assert marks() == [omission(2, 9)]
        press(tab, "Control+y", "Delete")
        assert marks() == []
        assert tab.evaluate("document.activeElement.id") == "source"

        tab.focus("#text")
        press(tab, "Home", "1")
        tab.focus("#source")
        press(tab, "Home", "2")
        tab.focus("#text")  # its cursor is where it was
        press(tab, "Delete")
        assert marks() == [omission(0, 1)]
        tab.click("[data-key='errors-0']")
        press(tab, "Delete")
        assert marks() == []

        # a drag that ends in the other text belongs to the first
        drag_between(tab, source_word(tab, 5), word(tab, 2))
        press(tab, "2")
        (error,) = marks()
        assert error["side"] == "source" and error["end"] == len(SOURCE)
        press(tab, "Delete")
        drag_between(tab, word(tab, 2), source_word(tab, 5))
        press(tab, "1")
        assert marks() == [wrong(0, 11)]
        press(tab, "Delete")

        assert tab.inner_text("#source") == SOURCE
        drag_between(tab, source_word(tab, 1), source_word(tab, 2))
        press(tab, "1")
        assert f"Wrong is marked in the {QA.schema.fields.noun}" in tab.inner_text("#message")
        press(tab, "2")
        assert "“who sat” (2 words) is error 1 (Omission)" in tab.inner_text("#message")
        drag(tab, 1, 1)
        press(tab, "2")
        assert "Omission is marked in the source" in tab.inner_text("#message")
        press(tab, "1")
        assert badge(source_word(tab, 1)) == "O1"
        assert badge(word(tab, 1)) == "W2"
        cards = tab.locator("#errors .card").all_inner_texts()
        assert "who sat" in cards[0] and "in the source" in cards[0]
        assert "cat" in cards[1] and "in the source" not in cards[1]
        assert marks() == [omission(2, 9), wrong(4, 7)]
        press(tab, "Control+Enter")
        (row,) = saved(tab, "#download")
        assert row["spans"] == [source_span(2, 9), {"start": 4, "end": 7, "label": "Wrong"}]


def test_translations_have_omissions_in_the_source():
    schema = feedback_of("translation").schema
    of_source = [kind.name for kind in schema.errors if kind.side == "source"]
    assert of_source == ["major omission", "minor omission"]


# ---- conversations -------------------------------------------------------------------------------

TURNS = [
    {"role": "user", "content": "Is the sky blue?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Why?"},
]
FLAT = "\n\nHuman: Is the sky blue?\n\nAssistant: Yes.\n\nHuman: Why?\n\nAssistant:"


def test_nothing_is_marked_in_a_conversation_that_has_no_single_text(chromium, tmp_path):
    task = task_with(tmp_path, **KINDS)
    write_json(tmp_path / "turns.json", [{**ROW, "prompt": TURNS}])
    with pytest.raises(DataError, match="Omission of this task are marked in the source"):
        read_items(task, tmp_path / "turns.json")
    for prompt in (FLAT, TURNS[:1]):
        write_json(tmp_path / "rows.json", [{**ROW, "prompt": prompt}])
        [item] = read_items(task, tmp_path / "rows.json")
    plain = task_with(tmp_path)  # a task that marks nothing in the source
    assert len(read_items(plain, tmp_path / "turns.json")) == 1
    task = task_with(tmp_path, **KINDS)
    with opened(chromium, where=page_with(task, [ROW])) as tab:
        tab.set_input_files("#file", tmp_path / "turns.json")
        tab.wait_for_selector("#notice:not([hidden])")
        assert "in whose turns nothing can be marked" in tab.inner_text("#notice")


def test_marks_in_a_conversation_of_an_earlier_version_have_their_text(tmp_path):
    task = task_with(tmp_path, **KINDS)
    item = task.format.item_row(task.schema, {**SOURCE_ROW, "prompt": TURNS}, "")
    marked = Item("0", {**item, "feedback": doc(omission(9, 11))})
    row = task.format.feedback_row(task.schema, marked)
    assert row["prompt"] == FLAT and FLAT[9:11] == "Is"
    [span] = SPANS.parse(Row(row, {}), 0).spans
    assert (span.start, span.end, span.side) == (9, 11, "source")
    unmarked = task.format.feedback_row(task.schema, Item("0", {**item, "feedback": doc()}))
    assert unmarked["prompt"] == TURNS


def test_offsets_in_a_text_that_the_row_does_not_have_are_refused():
    span = {"start": 9, "end": 11, "label": "Omission", "side": "source"}
    row = {"prompt": TURNS, "response": "It is.", "spans": [span]}
    with pytest.raises(RowError, match="its offsets count in no text of the row"):
        SPANS.parse(Row(row, {}), 0)
    for given in ({"source": FLAT}, {"prompt": FLAT}, {"prompt": [{**TURNS[0], "content": FLAT}]}):
        assert len(SPANS.parse(Row({**row, **given}, {}), 0).spans) == 1
    with_source = SPANS.parse(Row({**row, "prompt": TURNS[1:], "source": FLAT}, {}), 0)
    assert SPANS.to_row(with_source)["source"] == FLAT
