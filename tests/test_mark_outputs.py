"""Marks in every output of an item: schema, rules, rows, agreement, adjudication and the page."""

import json

import pytest
from made_tasks import OMISSION, REPEATS, ROW, WRONG, page_with, saved, task_with
from made_tasks import annotation as doc
from page_helpers import QA, TEXT, drag_between, opened, press, refused, state
from test_adjudicate_values import submission
from test_schema import broken

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.data import span_rows
from fgrlhf.data.judgements import NO_ERROR
from interface_html import tasks
from interface_html.adjudicate import items_to_adjudicate
from interface_html.agreement_figures import report
from interface_html.annotator_pairs import pair_agreements
from interface_html.format import Item
from interface_html.items import item_json, read_items, rows_text
from interface_html.judged import judged_item
from interface_html.judged_items import JudgedItem
from interface_html.render import page_html
from interface_html.rules import annotation_problems, side_of, text_labels
from interface_html.server import judged_sha256
from interface_html.votes import judged_items

KINDS = {"errors": [WRONG, REPEATS, OMISSION], "missing": [], "correction": False}
KEYS = {**KINDS, "mark_outputs": True}
SECOND = "A 😀 cat. A dog."
OUTPUTS_ROW = {**ROW, "responses": [TEXT, SECOND, "third one", "fourth"]}


@pytest.fixture
def task(tmp_path):
    return task_with(tmp_path, **KEYS)


def wrong(start: int, end: int, output: int = 0, **more) -> dict:
    error = {"error type": "Wrong", "explanation": "", "start": start, "end": end}
    return {**error, **({"output": output} if output else {}), **more}


def omission(start: int, end: int, **more) -> dict:
    return {**wrong(start, end), "error type": "Omission", "side": "source", **more}


def fields(task, document) -> list[str]:
    row = task.format.item_row(task.schema, OUTPUTS_ROW, "")
    return [field for field, _ in annotation_problems(task.schema, row, document)]


# ---- the schema and the rules --------------------------------------------------------------------


def test_an_output_is_an_unknown_key_if_a_task_marks_the_first_one_only(tmp_path):
    plain = task_with(tmp_path, **KINDS)
    span = {"start": 4, "end": 7, "label": "Repeats", "evidence": "The", "output": 9}
    path = tmp_path / "rows.json"
    write_json(path, [{**OUTPUTS_ROW, "spans": [span]}])
    with pytest.raises(UserError, match=r"row 0, `spans\[0\]\.output`: is not known"):
        read_items(plain, path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"correction": True}, "excludes `correction` and `missing`"),
        ({"errors": [OMISSION]}, "needs kinds of `errors` that are marked in an output"),
    ],
)
def test_schemas_in_which_it_has_no_meaning_are_refused(tmp_path, changes, message):
    assert message in broken(tmp_path, lambda tree: tree.update(**{**KEYS, **changes}))


def test_it_needs_several_outputs(tmp_path):
    def one_output(tree):
        first, *others = tree["fields"]["outputs"]
        tree.update(**KEYS, comparison=None)
        tree["fields"]["outputs"] = [first]
        tree["row"] = [key for key in tree["row"] if key not in others]

    assert "needs two or more `fields.outputs`" in broken(tmp_path, one_output)


def test_a_format_of_its_own_has_marks_in_the_first_output_only(monkeypatch):
    """Such as that of qa-feedback, which stays byte for byte as it is."""
    schema = QA.schema.model_copy(update={"mark_outputs": True})
    monkeypatch.setattr(tasks, "load_schema", lambda path: schema)
    with pytest.raises(UserError, match="needs the default format of rows"):
        tasks.feedback_of("qa_feedback")


def test_a_mark_is_checked_against_the_text_of_its_output(task):
    assert fields(task, doc(wrong(0, 1, 1), wrong(0, 5, 2))) == []
    assert fields(task, doc(wrong(0, 9, 3))) == ["feedback.errors[0].end"]
    assert fields(task, doc(wrong(3, 8, 1))) == ["feedback.errors[0].start"]
    quoted = doc(wrong(0, 5, 2, quote="third"), wrong(0, 5, 2, quote="The c"))
    assert fields(task, quoted) == ["feedback.errors[1].quote", "feedback.errors[1]"]
    repeats = {**wrong(9, 10, 1), "error type": "Repeats", "explanation": "A"}
    assert fields(task, doc(repeats)) == []
    # "The cat" comes before the span in the first output, but not in the second
    other = {**repeats, "explanation": "The"}
    assert fields(task, doc(other)) == ["feedback.errors[0].explanation"]


def test_marks_overlap_in_the_same_output_only(task):
    assert fields(task, doc(wrong(0, 3), wrong(0, 1, 1), wrong(0, 5, 2))) == []
    twice = doc(wrong(0, 8, 1), wrong(0, 3), wrong(2, 3, 1))
    assert fields(task, twice) == ["feedback.errors[2]"]


@pytest.mark.parametrize("value", [0, 4, -1, "1", None, True, 1.0])
def test_the_output_is_the_index_of_another_one_than_the_first(task, value):
    assert fields(task, doc({**wrong(0, 3), "output": value})) == ["feedback.errors[0].output"]


def test_marks_of_the_source_have_no_output(task):
    assert fields(task, doc(omission(0, 3))) == []
    assert fields(task, doc(omission(0, 3, output=1))) == ["feedback.errors[0].output"]
    assert side_of(omission(0, 3)) == "source" and side_of(wrong(0, 3)) == "response"
    assert side_of(wrong(0, 1, 2)) == "output 2"


def test_without_it_no_mark_has_an_output(tmp_path):
    plain = task_with(tmp_path, **KINDS)
    assert fields(plain, doc(wrong(0, 3, 1))) == ["feedback.errors[0].output"]
    assert fields(plain, doc(wrong(0, 3))) == []


# ---- rows ----------------------------------------------------------------------------------------


def span(start, end, label="Wrong", **more) -> dict:
    return {"start": start, "end": end, "label": label, **more}


IN_ROW = {
    "spans": [span(2, 5, "Omission", side="source"), span(4, 7)],
    "other_spans": [[span(0, 1), span(9, 10, "Repeats", evidence="A")], [], [span(0, 6)]],
}
SOURCE_ROW = {**OUTPUTS_ROW, "prompt": "😀 who sat?", **IN_ROW}
IN_DOC = [
    omission(2, 5),
    wrong(4, 7),
    wrong(0, 1, 1),
    {**wrong(9, 10, 1), "error type": "Repeats", "explanation": "A"},
    wrong(0, 6, 3),
]


def test_rows_have_the_marks_of_each_output_and_come_back(task, tmp_path):
    path = tmp_path / "rows.json"
    empty = {**OUTPUTS_ROW, "id": "e", "spans": [], "other_spans": [[], [], []]}
    path.write_text(json.dumps([SOURCE_ROW, empty, {**OUTPUTS_ROW, "id": "n"}]))
    items = read_items(task, path)
    assert items[0].feedback["errors"] == IN_DOC and items[1].feedback["errors"] == []
    assert items[2].feedback is None
    text = rows_text(item_json(task, item) for item in items)
    path.write_text(text)
    assert rows_text(item_json(task, item) for item in read_items(task, path)) == text
    for row, written in zip([SOURCE_ROW, empty], json.loads(text)):
        assert {key: written[key] for key in row} == row
    # marks in any order
    mixed = Item("r", {**items[0].row, "feedback": doc(*reversed(IN_DOC))})
    spans = task.format.feedback_row(task.schema, mixed)["other_spans"]
    assert spans == [list(reversed(IN_ROW["other_spans"][0])), [], [span(0, 6)]]


WRONG_ROWS = [
    ({"other_spans": None}, "other_spans"),
    ({"other_spans": [[], []]}, "`other_spans`: has 2 entries, must have 3"),
    ({"other_spans": [[], {}, []]}, r"other_spans\[1\]"),
    ({"other_spans": [[], [1], []]}, r"other_spans\[1\]\[0\]"),
    ({"other_spans": [[], [], [span(0, 9)]]}, r"other_spans\[2\]\[0\].end"),
    ({"other_spans": [[span(0, 1), span(0, 2)], [], []]}, r"other_spans\[0\]\[1\]"),
    ({"other_spans": [[span(0, 1, "New")], [], []]}, r"other_spans\[0\]\[0\].label"),
    ({"other_spans": [[span(0, 1, output=1)], [], []]}, r"other_spans\[0\]\[0\].output"),
    ({"other_spans": [[span(0, 1, side="source")], [], []]}, r"other_spans\[0\]\[0\].side"),
    ({"spans": [span(0, 3, output=1)]}, r"spans\[0\].output"),
]


@pytest.mark.parametrize("changes, place", WRONG_ROWS)
def test_wrong_rows_are_refused_with_the_place(task, tmp_path, changes, place):
    write_json(tmp_path / "rows.json", [{**SOURCE_ROW, **changes}])
    with pytest.raises(UserError, match=place):
        read_items(task, tmp_path / "rows.json")


def test_a_row_has_both_lists_or_none(task, tmp_path):
    for key in ("spans", "other_spans"):
        row = {name: value for name, value in SOURCE_ROW.items() if name != key}
        write_json(tmp_path / "rows.json", [row])
        with pytest.raises(UserError, match="other_spans"):
            read_items(task, tmp_path / "rows.json")


def test_the_browser_refuses_rows_of_a_wrong_form(chromium, task, tmp_path):
    rows = [{**SOURCE_ROW, **changes} for changes, _ in [*WRONG_ROWS[:4], *WRONG_ROWS[6:]]]
    for key in ("spans", "other_spans"):
        rows.append({name: value for name, value in SOURCE_ROW.items() if name != key})
    with opened(chromium, where=page_with(task, [SOURCE_ROW])) as tab:
        for row in rows:
            assert "row 0 of the file" in refused(tab, tmp_path / "other.json", [row])
        assert tab.locator("#errors > li").count() == len(IN_DOC)


# ---- several annotators --------------------------------------------------------------------------


def items_of(task, tmp_path, count=1) -> list[Item]:
    write_json(tmp_path / "items.json", [{**OUTPUTS_ROW, "id": str(i)} for i in range(count)])
    return read_items(task, tmp_path / "items.json")


def test_agreement_counts_the_marks_of_all_outputs(task, tmp_path):
    (item,) = items_of(task, tmp_path)
    # anna and ben agree in the second output, and mark the same place of different outputs
    first, second = doc(wrong(0, 8, 1), wrong(0, 5, 2)), doc(wrong(0, 8, 1), wrong(0, 3))
    judged = [JudgedItem(item, {"anna": first, "ben": second})]
    figures = report(task, judged)
    for name in ("span F1, exact", "span F1, one-to-one overlap", "span F, MPP"):
        assert figures[f"{name}, positions and types"].mean == pytest.approx(2 / 4)
    (pair,) = pair_agreements(task.schema, judged)
    assert pair.span_f1 == pytest.approx(2 / 4)
    labels = text_labels(task.schema, item.row, first)
    texts = [TEXT, SECOND, "third one", "fourth", OUTPUTS_ROW["prompt"]]
    assert len(labels) == sum(map(len, texts))
    assert labels.count("Wrong") == 13 and labels[len(TEXT)] == "Wrong"
    name = "alpha, types of words"
    words = figures[name]
    same = report(task, [JudgedItem(item, {"anna": first, "ben": first})])[name]
    assert same.mean == 1 and words.mean < 1
    segments = task.format.segment_labels(task.schema, item, [first])["sentences"]
    assert [label for (label,) in segments] == ["none"] * 3 + ["Wrong", "none", "Wrong", "none"]


def test_severities_of_all_outputs_are_compared(tmp_path):
    severities = [
        {"name": name, "label": name, "key": key, "letter": key.lower()}
        for name, key in (("minor", "M"), ("major", "J"))
    ]
    task = task_with(tmp_path, **KEYS, severities=severities)
    items = items_of(task, tmp_path, 2)
    judged = []
    for item, severity in zip(items, ("minor", "major")):
        marked = doc(wrong(0, 1, 1, severity=severity))
        judged.append(JudgedItem(item, {"anna": marked, "ben": marked}))
    assert report(task, judged)["alpha, severities of matched spans (ordinal)"].mean == 1


def test_the_majority_is_of_all_outputs(task, tmp_path):
    items = items_of(task, tmp_path)
    docs = {"anna": doc(), "ben": doc(wrong(0, 8, 1)), "cleo": doc(wrong(0, 8, 1), wrong(0, 1, 3))}
    docs["cleo"]["errors"][1]["end"] = 6
    given = [submission("0", name, "annotation", value) for name, value in docs.items()]
    (judged,), _ = judged_items(task.schema, items, given, "majority", ["annotation"])
    assert judged.feedback == docs["ben"]


def test_judgements_have_a_row_for_each_output(task, tmp_path):
    (item,) = items_of(task, tmp_path)
    annotations = {"anna": doc(omission(0, 3), wrong(0, 1, 1)), "ben": doc()}
    rows = [judged_item(task, span_rows.ROWS, item, annotations, {}, output) for output in range(4)]
    assert [row.response for row in rows] == OUTPUTS_ROW["responses"]
    assert [row.prompt.meta["output"] for row in rows] == [0, 1, 2, 3]
    labels = [[(one.annotator, one.label) for one in row.judgements] for row in rows]
    nothing = [("anna", NO_ERROR), ("ben", NO_ERROR)]
    assert labels[0] == [("anna", "Omission"), ("ben", NO_ERROR)]
    assert labels[1] == [("anna", "Wrong"), ("ben", NO_ERROR)] and labels[2:] == [nothing] * 2


def test_marks_are_shared_in_the_same_output_only(task, tmp_path):
    items = items_of(task, tmp_path, 2)
    same = doc(wrong(0, 1, 1), wrong(0, 3))
    pairs = {"0": (same, same), "1": (same, doc(wrong(0, 1, 1), wrong(0, 3, 3)))}
    given = []
    for name, docs in pairs.items():
        for annotator, document in zip(("anna", "ben"), docs):
            given.append(submission(name, annotator, "annotation", document))
    chosen = items_to_adjudicate(task.schema, items, given)
    assert [item.id for item in chosen] == ["1"]  # different in the fourth output
    assert chosen[0].row["shared"]["errors"] == [wrong(0, 1, 1)]


def test_the_server_checks_the_texts_of_all_outputs(task, tmp_path):
    (item,) = items_of(task, tmp_path)
    other = {**item.row, task.schema.fields.outputs[3]: "changed"}
    hashes = [judged_sha256(task.schema, row, "annotation") for row in (item.row, other)]
    assert hashes[0] != hashes[1]
    plain = task_with(tmp_path, **KINDS).schema
    assert len({judged_sha256(plain, row, "annotation") for row in (item.row, other)}) == 1


# ---- the page ------------------------------------------------------------------------------------


def in_output(tab, output: int, number: int):
    return tab.locator(f"#text-{output} .w[data-i='{number}']")


def test_the_pages_of_other_tasks_stay_as_they_are(tmp_path):
    plain = task_with(tmp_path, **KINDS)
    html = page_html(plain, "annotation", shared="", own="")
    assert "one-of-several" not in html and 'id="text-1"' not in html


def test_marks_in_each_output(chromium, task):
    page = page_with(task, [OUTPUTS_ROW, {**SOURCE_ROW, "id": "f"}])
    with opened(chromium, where=page) as tab:
        marks = lambda: state(tab)["doc"]["errors"]  # noqa: E731
        texts = [tab.inner_text(f"#text{name}") for name in ("", "-1", "-2", "-3")]
        assert texts == OUTPUTS_ROW["responses"]
        press(tab, "Home", "1", "Tab")  # to the second answer
        assert tab.evaluate("document.activeElement.id") == "text-1"
        press(tab, "ArrowRight")
        assert "Answer 2: “😀”, word 2 of 5, not marked" in tab.text_content("#announce")
        press(tab, "Shift+ArrowRight", "1", "Alt+ArrowRight")
        assert marks() == [wrong(0, 3), wrong(2, 10, 1)]
        press(tab, "Escape", "ArrowRight", "ArrowRight")
        press(tab, "Shift+End", "2")
        assert "repeats" in tab.inner_text("#message")
        press(tab, "Home", "Home", "Enter")
        repeats = {**wrong(11, 15, 1), "error type": "Repeats", "explanation": "A"}
        assert marks()[-1] == repeats
        press(tab, "Control+z", "Control+z", "Control+z")
        assert marks() == [wrong(0, 3), wrong(2, 8, 1)]
        tab.click("[data-key='errors-1']")
        press(tab, "Delete")
        assert marks() == [wrong(0, 3)]
        assert tab.evaluate("document.activeElement.id") == "text-1"
        tab.click("[data-key='errors-0']")
        press(tab, "Delete")

        drag_between(tab, in_output(tab, 1, 1), in_output(tab, 1, 2))
        press(tab, "1")
        assert "“😀 cat.” (2 words) is error 1 (Wrong)" in tab.inner_text("#message")
        in_output(tab, 3, 0).click()
        press(tab, "1")
        tab.locator("#text .w >> nth=1").click()
        press(tab, "1")
        assert marks() == [wrong(2, 8, 1), wrong(0, 6, 3), wrong(4, 7)]
        badges = [
            "#text-1 .w [data-badge=W1]",
            "#text-3 .w [data-badge=W2]",
            "#text [data-badge=W3]",
        ]
        assert [tab.locator(selector).count() for selector in badges] == [1, 1, 1]
        assert tab.locator(".w.marked").count() == 4
        cards = tab.locator("#errors .card").all_inner_texts()
        assert [f"in answer {n}" in card for n, card in zip((2, 4, 1), cards)] == [True] * 3
        press(tab, "Control+Enter", "]")
        assert tab.locator("#text-1 .w.marked").count() == 2
        assert tab.locator("#text-3 .w.marked").count() == 1
        press(tab, "Control+Enter")
        first, second = saved(tab, "#download")
        assert first["spans"] == [span(4, 7)]
        assert first["other_spans"] == [[span(2, 8)], [], [span(0, 6)]]
        expected = item_json(task, read_items(task, task.folder / "rows.json")[1])
        assert json.dumps(second) == json.dumps(expected)


def two_annotations() -> dict:
    first = doc(wrong(0, 1, 1), wrong(0, 6, 3))
    second = doc(wrong(2, 3, 1), wrong(0, 3))
    annotations = [{"annotator": "anna", **first}, {"annotator": "ben", **second}]
    shared = {"errors": [], "missing-info": [], "corrected-prediction": ""}
    return {**OUTPUTS_ROW, "annotations": annotations, "shared": shared}


def test_annotations_of_all_outputs_are_decided_between(chromium, task):
    with opened(chromium, where=page_with(task, [two_annotations()])) as tab:
        text = tab.inner_text("#annotations")
        assert "Wrong in answer 2: “A”" in text and "Wrong in answer 4: “fourth”" in text
        texts = ("#text", "#text-1", "#text-2", "#text-3")
        marked = [tab.locator(f"{one} .w.laned").all_inner_texts() for one in texts]
        assert marked == [["The"], ["A", "😀"], [], ["fourth"]]
        # the order of the outputs: 1, then two places in 2, then 4
        press(tab, ".")
        assert tab.locator("#text .w.linked").all_inner_texts() == ["The"]
        press(tab, ".")
        assert tab.locator("#text-1 .w.linked").all_inner_texts() == ["A"]
        assert tab.locator("#text .w.linked").count() == 0
        press(tab, "Enter", ".", "Tab", "Enter")
        assert state(tab)["doc"]["errors"] == [wrong(0, 1, 1), wrong(2, 3, 1)]
        tab.click("text=Take all of A")
        assert state(tab)["doc"]["errors"] == [wrong(0, 1, 1), wrong(0, 6, 3)]
