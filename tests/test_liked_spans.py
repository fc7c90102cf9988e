"""Spans that annotators like: the schema, the rules, the figures, the rows, and the page."""

import json

from made_tasks import FLUENT, ROW, SEVERITIES, WRONG, page_with, saved, schema_json, task_with
from made_tasks import annotation as doc
from made_tasks import wrong_fields as fields
from page_helpers import badge, drag, opened, press, word
from test_schema import broken

from fgrlhf.data import span_rows
from fgrlhf.data.agreement.responses import Shared
from fgrlhf.data.formats import SPANS
from interface_html.adjudicate import items_to_adjudicate
from interface_html.agreement_figures import report
from interface_html.annotator_pairs import pair_agreements
from interface_html.format import Item
from interface_html.items import item_json, read_items, rows_text
from interface_html.judged import annotation_judgements
from interface_html.judged_items import JudgedItem
from interface_html.rules import errors_only
from interface_html.stored import Submission
from interface_html.suggestions import item_suggestion_problems
from interface_html.votes import judged_items

KINDS = {"errors": [WRONG, FLUENT], "missing": [], "correction": False}
BAD = {"error type": "Wrong", "explanation": "", "start": 4, "end": 7}
GOOD = {"error type": "Fluent", "explanation": "", "start": 8, "end": 11}
LIKED_SPAN = {"start": 8, "end": 11, "label": "Fluent"}


def submission(item: str, annotator: str, document: dict) -> Submission:
    """The first submission of an annotation."""
    return Submission(
        item=item,
        annotator=annotator,
        page="annotation",
        doc=document,
        shown=[],
        seconds=1.0,
        guideline="1",
        created=0.0,
        revision=1,
        wall=None,
        guideline_sha256=None,
    )


def test_a_positive_kind_needs_no_evidence(tmp_path):
    kind = {**FLUENT, "needs": "earlier text"}
    message = broken(tmp_path, lambda tree: tree.update(errors=[kind]))
    assert "Fluent is positive: its `needs` must be nothing" in message


def test_liked_spans_are_no_errors(tmp_path):
    task = task_with(tmp_path, **KINDS)
    assert fields(task, doc(GOOD, no_error=True)) == []
    assert fields(task, doc(GOOD, no_error=False)) == ["feedback.no-error"]
    assert fields(task, doc(GOOD, BAD, no_error=False)) == []
    assert fields(task, doc(GOOD, BAD, no_error=True)) == ["feedback.no-error"]
    assert fields(task, doc({**GOOD, "start": 9}, no_error=True)) == ["feedback.errors[0].start"]
    assert errors_only(task.schema, doc(GOOD, BAD, no_error=False))["errors"] == [BAD]


def test_liked_spans_need_no_correction_and_no_severity(tmp_path):
    keys = {**KINDS, "severities": SEVERITIES, "severity_required": True, "correction": True}
    task = task_with(tmp_path, **keys)
    text = ROW["response"]
    assert fields(task, doc(GOOD, no_error=True, corrected=text)) == []
    changed = doc(GOOD, no_error=True, corrected="Other.")
    assert fields(task, changed) == ["feedback.corrected-prediction"]
    serious = doc({**GOOD, "severity": "minor"}, no_error=True, corrected=text)
    assert fields(task, serious) == ["feedback.errors[0].severity"]


def test_suggested_errors_are_not_liked(tmp_path):
    task = task_with(tmp_path, **KINDS)
    row = task.format.item_row(task.schema, ROW, "")
    suggestion = {"type": "Fluent", "start": 0, "end": 3, "explanation": "", "score": 1.0}
    suggestion["source"] = "model"
    found = list(item_suggestion_problems(task.schema, {**row, "suggestions": [suggestion]}))
    assert [field for field, _ in found] == ["suggestions[0].type"]


# ---- figures -------------------------------------------------------------------------------------


def test_figures_are_those_without_liked_spans(tmp_path):
    task = task_with(tmp_path, **KINDS, comparison=None)
    item = Item("r", task.format.item_row(task.schema, ROW, ""))
    clean, bad = doc(no_error=True), doc(BAD, no_error=False)
    liked, both = doc(GOOD, no_error=True), doc(BAD, GOOD, no_error=False)
    plain = [
        JudgedItem(item, {"anna": clean, "ben": bad}),
        JudgedItem(item, {"anna": bad, "ben": bad}),
    ]
    with_liked = [
        JudgedItem(item, {"anna": liked, "ben": both}),
        JudgedItem(item, {"anna": bad, "ben": both}),
    ]
    assert report(task, with_liked) == report(task, plain)
    assert pair_agreements(task.schema, with_liked) == pair_agreements(task.schema, plain)
    labels = task.format.segment_labels(task.schema, item, [both, liked])
    assert labels == task.format.segment_labels(task.schema, item, [bad, clean])


def test_items_are_ranked_for_adjudication_by_their_errors(tmp_path):
    task = task_with(tmp_path, **KINDS)
    row = task.format.item_row(task.schema, ROW, "")
    items = [Item("liked", row), Item("wrong", row)]
    submissions = []
    for item, document in (
        ("liked", doc(GOOD, no_error=True)),
        ("wrong", doc(BAD, no_error=False)),
    ):
        for annotator, given in (("anna", document), ("ben", doc(no_error=True))):
            submissions.append(submission(item, annotator, given))
    ranked = items_to_adjudicate(task.schema, items, submissions)
    assert [item.id for item in ranked] == ["wrong", "liked"]


def test_agreement_of_judgements_is_about_errors(tmp_path):
    schema = task_with(tmp_path, **KINDS).schema
    document = doc(GOOD, BAD, no_error=False)
    judgements = annotation_judgements(schema, span_rows.ROWS, "anna", document)
    shared = Shared(ROW["response"], {"anna": judgements})
    assert [judgement.label for judgement in shared.spans("anna")] == ["Wrong"]


def test_the_majority_is_about_errors(tmp_path):
    task = task_with(tmp_path, **KINDS, comparison=None)
    items = [Item("r", task.format.item_row(task.schema, ROW, ""))]
    liked = doc(GOOD, no_error=True)
    given = {
        "anna": doc(BAD, no_error=False),
        "ben": doc(no_error=True),
        "cara": liked,
        "dan": liked,
    }
    given |= {"dan": liked, "eve": liked}
    submissions = [submission("r", name, document) for name, document in given.items()]
    (item,), _ = judged_items(task.schema, items, submissions, "majority", ["annotation"])
    assert item.feedback is not None
    assert item.feedback["errors"] == []  # ben's: the first of four that agree


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_have_the_liked_spans_and_come_back(tmp_path):
    task = task_with(tmp_path, **KINDS)
    row = {**ROW, "spans": [LIKED_SPAN]}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]))
    (item,) = read_items(task, path)
    assert item.feedback["errors"] == [GOOD]
    assert rows_text([item_json(task, item)]) == rows_text([row])
    (judged,) = SPANS.read(path)
    (judgement,) = judged.judgements
    assert (judgement.label, judgement.span) == ("Fluent", (8, 11))


def test_judgements_tell_what_is_liked(tmp_path):
    schema = task_with(tmp_path, **KINDS).schema

    def told(document):
        judgements = annotation_judgements(schema, span_rows.ROWS, "anna", document)
        return [(judgement.aspect, judgement.label) for judgement in judgements]

    assert told(doc(GOOD, BAD, no_error=False)) == [("liked", "Fluent"), ("span", "Wrong")]
    assert told(doc(GOOD, no_error=True)) == [("liked", "Fluent"), ("span", "no error")]


# ---- the page ------------------------------------------------------------------------------------


def test_liked_spans_on_the_page(chromium, tmp_path):
    task = task_with(tmp_path, **KINDS, severities=SEVERITIES)
    rows = [ROW, {**ROW, "id": "f", "spans": [LIKED_SPAN]}]
    with opened(chromium, where=page_with(task, rows)) as tab:
        drag(tab, 1, 1)
        press(tab, "1", "m")
        assert badge(word(tab, 1)) == "W1m"
        press(tab, "2")  # it becomes a liked one, and its severity goes
        assert badge(word(tab, 1)) == "♥F1"
        press(tab, "Control+z")
        assert badge(word(tab, 1)) == "W1m"
        press(tab, "n")
        assert "1 error or missing item is marked" in tab.inner_text("#message")
        tab.click("[data-key='errors-0-remove']")
        drag(tab, 1, 1)
        press(tab, "2")
        assert "liked span 1 (Fluent)" in tab.inner_text("#message")
        style = "node => getComputedStyle(node).borderBottomStyle"
        assert word(tab, 1).evaluate(style) == "dotted"
        assert "(liked)" in tab.inner_text("#errors .cardtitle")
        assert tab.inner_text("#error-count") == "0, 1 liked"
        assert "(liked)" in tab.text_content("#types [data-kind='Fluent']")
        assert tab.locator("#errors .severity").count() == 0
        press(tab, "m")
        assert "liked span 1 (Fluent) is no error" in tab.inner_text("#message")
        press(tab, "n")
        assert tab.is_checked("#no-error")
        drag(tab, 3, 3)
        press(tab, "1")  # an error cannot be marked now
        assert "“No error” is ticked" in tab.inner_text("#message")
        press(tab, "2")  # a liked span can
        assert badge(word(tab, 3)) == "♥F2"
        press(tab, "Control+Enter", "]")
        assert tab.is_checked("#no-error")  # the file has liked spans only
        press(tab, "Control+Enter")
        first, second = saved(tab, "#download")
        assert [span["label"] for span in first["spans"]] == ["Fluent", "Fluent"]
        assert second == rows[1]


def test_warnings_are_about_errors(chromium, tmp_path):
    task = task_with(tmp_path, **{**KINDS, "correction": True})
    row = task.format.item_row(task.schema, ROW, "")
    corrected = ROW["response"].replace("The cat", "A cat", 1)
    with opened(chromium, items=None) as tab:

        def warnings(*errors):
            document = doc(*errors, no_error=False, corrected=corrected)
            call = "([schema, row, doc]) => FG.correctionWarnings(schema, row, doc)"
            return tab.evaluate(call, [schema_json(task), row, document])

        touched = {**BAD, "start": 0, "end": 3}
        assert warnings(touched, GOOD) == []
        (warning,) = warnings(GOOD)
        assert "no error is marked" in warning
