"""Adjudication: disagreement and shared marks by hand, the export, and the page that starts."""

import json
from collections import Counter

import pytest
from made_tasks import ROW as MADE_ROW
from made_tasks import page_with, task_with
from page_helpers import ITEM, TEXT, opened, press, state, word
from served_pages import visiting
from server_helpers import Client, serving
from test_database import Clock
from test_liked_spans import submission
from test_rules import ROW, doc, error, missing

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from interface_html import export
from interface_html.adjudicate import (
    AdjudicateSettings,
    adjudicate,
    disagreement,
    items_to_adjudicate,
    shared_marks,
)
from interface_html.assignments import Receipt
from interface_html.database import Database
from interface_html.decisions import read_decisions
from interface_html.format import Item
from interface_html.items import read_items
from interface_html.submissions import SubmissionsSettings, write_submissions
from interface_html.tasks import feedback_of

QA = feedback_of("qa_feedback")


def test_disagreement_by_hand():
    def of(*docs):
        return disagreement(QA.schema, Item("0", ROW), "annotation", docs)

    none, first, half = doc(), doc([error(start=0, end=4)]), doc([error(start=0, end=2)])
    other = doc([error("Unverifiable", 0, 4)])
    assert of(none, none) == of(first, first) == 0
    assert of(first, none) == of(first, other) == 1
    assert of(first, half) == pytest.approx(1 - 2 * 2 / (4 + 2))
    # pairs: 4 of 8 characters twice, 0 of 4, 0 of 4
    assert of(first, first, none) == pytest.approx(1 - 2 * 4 / (8 + 4 + 4))


def test_missing_information_is_a_disagreement():
    items = [Item("0", ROW), Item("1", ROW)]
    docs = [("0", "anna", doc()), ("0", "ben", doc())]
    docs += [("1", "anna", doc([], [missing()])), ("1", "ben", doc([], [missing(ids=(2,))]))]
    given = [submission(item, name, value) for item, name, value in docs]
    alike = Counter()
    chosen = items_to_adjudicate(QA.schema, items, given, alike=alike)
    assert [item.id for item in chosen] == ["1"] and alike == {"annotation": 1}


def test_shared_marks_by_hand():
    a = doc([error(quote="The cat"), error("Unverifiable", 8, 11)], [missing(), missing(ids=(2,))])
    b = doc([error("Unverifiable", 8, 15), error()], [missing(ids=(2,))])
    shared = shared_marks(QA.schema, "text", [a, b])
    assert shared["errors"] == [error()]
    assert shared["missing-info"] == [missing(ids=(2,))]
    assert shared["corrected-prediction"] == "text"
    severe = [doc([error(severity=name)]) for name in ("minor", "major", "minor")]
    assert shared_marks(QA.schema, "text", severe)["errors"] == [error()]
    same = shared_marks(QA.schema, "text", [severe[0], severe[2]])
    assert same["errors"] == severe[0]["errors"]
    suggested = doc([error(origin={"index": 0, "verdict": "accepted"})])
    assert shared_marks(QA.schema, "text", [suggested, a])["errors"] == [error()]


def test_missing_information_is_shared_whatever_the_order_of_its_sentences():
    """As in the page's list of differences."""
    first, second = doc([], [missing(ids=(1, 2))]), doc([], [missing(ids=(2, 1))])
    shared = shared_marks(QA.schema, "text", [first, second])
    assert shared["missing-info"] == first["missing-info"]
    assert shared_marks(QA.schema, "text", [first, doc()])["missing-info"] == []
    other = doc([], [missing(ids=(1,))])
    assert shared_marks(QA.schema, "text", [first, other])["missing-info"] == []


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


def to_adjudicate_of(study) -> list[Item]:
    paths = {"db": str(study / "f.sqlite"), "out": str(study / "items.json")}
    return adjudicate(AdjudicateSettings(task="qa_feedback", **paths))


def exported(study, **settings) -> list[dict]:
    paths = {"db": str(study / "f.sqlite"), "out": str(study / "o.json")}
    settings = {"task": "qa_feedback", "pages": "annotation", **paths, **settings}
    export.export(export.FeedbackExportSettings(**settings))
    return json.loads((study / "o.json").read_text())


def test_items_in_which_annotators_differ_come_with_their_annotations(study, capsys):
    assert [item.id for item in to_adjudicate_of(study)] == ["1"]
    assert "left out, since all annotators judged alike: 1 annotation\n" in capsys.readouterr().out
    (first,) = read_items(QA, study / "items.json")
    assert [entry["annotator"] for entry in first.row["annotations"]] == ["anna", "ben"]
    assert [len(entry["errors"]) for entry in first.row["annotations"]] == [1, 2]
    assert first.row["shared"]["errors"] == [error()] and first.feedback is None


def decided(study, content):
    """The database of an adjudication in which item 1 was decided."""
    to_adjudicate_of(study)
    database = Database(study / "a.sqlite", "qa_feedback", clock=Clock())
    database.add_items(read_items(QA, study / "items.json"))
    given = database.next("cleo", "annotation", 4)
    assert given.item.id == "1"
    database.submit(given, "cleo1", content, Receipt(1, "1"))
    database.close()
    return str(study / "a.sqlite")


def test_the_export_takes_decisions_before_the_majority(study, capsys):
    third = doc([error("Incoherent", 0, 3)])
    majority = exported(study, policy="majority")
    path = decided(study, third)
    rows = exported(study, policy="adjudicated", adjudicated=path)
    assert [row["feedback"]["errors"] for row in rows] == [[error()], third["errors"], [error()]]
    assert [rows[0], rows[2]] == [majority[0], majority[2]] and rows[1].keys() == majority[1].keys()
    assert "1 adjudicated item" in capsys.readouterr().out
    lines = SubmissionsSettings(task="qa_feedback", db=path, out=str(study / "lines.jsonl"))
    assert write_submissions(lines) == 1
    assert json.loads((study / "lines.jsonl").read_text())["role"] == "adjudicator"


def test_a_decision_counts_whatever_the_weight_of_its_adjudicator(study):
    path = decided(study, doc([error("Incoherent", 0, 3)]))
    figures = {"items": 1, "labels": 1, "accuracy": 1.0, "balanced_accuracy": 0.5}
    figures |= {"undefined": None, "repeated_labels": 0, "consistency": None}
    weights = {"anna": 2.0, "ben": 2.0, "cleo": 0.0}
    pages = {name: {"annotation": {**figures, "weight": w}} for name, w in weights.items()}
    write_json(study / "r.json", {"task": "qa_feedback", "right": "gold", "annotators": pages})
    weighted = {"weights": str(study / "r.json"), "least_weight": 1.0}
    rows = exported(study, policy="adjudicated", adjudicated=path, **weighted)
    assert [entry["error type"] for entry in rows[1]["feedback"]["errors"]] == ["Incoherent"]


def test_wrong_databases_are_refused(study):
    with pytest.raises(UserError, match="belong together"):
        exported(study, policy="adjudicated")
    items = [Item("0", ROW)]
    with pytest.raises(UserError, match="item '0' has no judgements to decide between"):
        read_decisions(QA, items, str(study / "f.sqlite"))
    path = decided(study, doc([error()]))
    with pytest.raises(UserError, match="item '1' is not in db=... with the same texts"):
        read_decisions(QA, items, path)
    with pytest.raises(UserError, match="has no item with two annotations"):
        adjudicate(AdjudicateSettings(task="qa_feedback", db=path, out=str(study / "x.json")))


# "cat sat" by A and "cat" by B; "red." by B only; "The cat" by both, with different evidence
SHARED = {"errors": [], "missing-info": [], "corrected-prediction": TEXT}
FIRST = [
    error("Irrelevant", 4, 11, quote="cat sat"),
    error("Redundant", 38, 45, explanation="The cat"),
]
SECOND = [
    error("Incoherent", 4, 7),
    error("Unverifiable", 33, 37, origin={"index": 0, "verdict": "accepted"}),
    error("Redundant", 38, 45, explanation="cat"),
]


def to_adjudicate(*docs, **changes):
    annotations = [
        {"annotator": f"annotator {number}", **content} for number, content in enumerate(docs)
    ]
    return {**ITEM, "annotations": annotations, "shared": SHARED, **changes}


def two(**changes):
    a = {**doc(FIRST, [missing()]), "corrected-prediction": "A corrected it."}
    b = {**doc(SECOND, [missing()]), "corrected-prediction": "B corrected it.", **changes}
    return to_adjudicate(a, b)


def plain(errors):
    return [{k: v for k, v in one.items() if k not in ("quote", "origin")} for one in errors]


def heads(tab):
    """The differences in words."""
    groups = tab.locator("#difference-list .versions").all()
    return [group.get_attribute("aria-label") for group in groups]


def version(number, k=0):
    """The button of a version of a difference, which are counted from 1 and from 0."""
    return f"[data-key='difference-{number}-{k}']"


def people(tab, number):
    """Who gave each version of a difference: ["A", "BC"]."""
    buttons = tab.locator(f"[data-key^='difference-{number}-']").all()
    return ["".join(one.locator(".person").all_inner_texts()) for one in buttons]


def pressed(tab):
    """The versions that are decided, as (difference, version)."""
    keys = "all => all.map((node) => node.dataset.key).filter(Boolean)"
    buttons = tab.locator("#difference-list [aria-pressed=true]")
    found = [key.split("-") for key in buttons.evaluate_all(keys)]
    return [(int(number), int(k)) for _, number, k in found]


def focused(tab):
    return tab.evaluate("document.activeElement.dataset.key")


def decisions(tab):
    return state(tab)["doc"]["decisions"]


def test_one_text_has_a_line_for_each_person_and_a_list_of_differences(chromium, tmp_path):
    with opened(chromium, items=[two()], tmp_path=tmp_path) as tab:
        take = [f"Take all of {name} {name}" for name in "AB"]
        assert tab.locator(".take-all button").all_inner_texts() == take
        laned = ["cat", "sat", "red.", "The", "cat"]
        assert tab.locator("#text .w.laned").all_inner_texts() == laned
        assert tab.locator("#text [data-difference]").evaluate_all(
            "all => all.map((word) => [word.textContent, word.dataset.difference])"
        ) == [["sat", "1"], ["red.", "2"], ["cat", "3"]]
        assert heads(tab) == [
            "Difference 1: different kinds, different spans",
            "Difference 2: marked by B only",
            "Difference 3: different evidence",
            "Difference 4: different corrections",
        ]
        assert "4 differences. 4 differences are not decided." in tab.inner_text("#annotations")
        text = tab.inner_text("#annotations")
        for words in ("Irrelevant: “cat sat”", "no mark", "repeats “The cat”", "; no majority"):
            assert words in text
        assert "found in 1:1" in tab.text_content("#annotations .same")
        assert "annotator 0" not in tab.inner_text("body")
        tab.set_input_files("#file", write(tmp_path, [to_adjudicate(doc([error()]), doc())]))
        tab.wait_for_selector("text=1 difference.")
        assert heads(tab) == ["Difference 1: marked by A only"]
        tab.set_input_files("#file", write(tmp_path, [ITEM]))
        tab.wait_for_selector("#annotations", state="hidden")
        press(tab, "Escape", ".")
        assert "no annotations to decide between" in tab.inner_text("#message")
        assert not tab.locator("#text .laned, #text [data-difference]").count()


def write(folder, rows):
    write_json(folder / "other.json", rows)
    return folder / "other.json"


def test_differences_are_decided_with_the_keyboard_alone(chromium, tmp_path):
    with opened(chromium, items=[two()], tmp_path=tmp_path) as tab:
        press(tab, ".")
        assert focused(tab) == "difference-1-0"
        assert "different spans (1 of 4)" in tab.inner_text("#message")
        assert tab.locator("#text .w.linked").all_inner_texts() == ["cat", "sat"]
        press(tab, "Enter")
        assert state(tab)["doc"]["errors"] == plain(FIRST[:1])
        said = "Taken from A: Irrelevant: “cat sat”. 3 differences are not decided."
        assert said in tab.inner_text("#message")
        assert focused(tab) == "difference-1-0" and pressed(tab) == [(1, 0)]
        press(tab, "Tab", "Space")  # B's mark replaces what was taken from A
        assert state(tab)["doc"]["errors"] == plain(SECOND[:1])
        assert pressed(tab) == [(1, 1)]
        press(tab, ".", "Tab", "Enter", ".", "Enter")
        assert state(tab)["doc"]["errors"] == plain([*SECOND[:2], FIRST[1]])
        press(tab, ",", "Shift+Tab", "Enter")  # back at difference 2: A has no mark there
        assert state(tab)["doc"]["errors"] == plain([SECOND[0], FIRST[1]])
        press(tab, ",", ",", "Tab", "Enter")  # from the first to the last: B's correction
        assert state(tab)["doc"]["corrected-prediction"] == "B corrected it."
        assert "All differences are decided." in tab.inner_text("#message")
        names = ["response 4-11", "response 33-37", "response 38-45", "correction"]
        assert decisions(tab) == dict.fromkeys(names, "taken")
        press(tab, "Control+z", "Control+z")
        assert state(tab)["doc"]["errors"] == plain([*SECOND[:2], FIRST[1]])
        assert list(decisions(tab)) == names[:3]


def test_missing_information_and_a_whole_annotation_are_taken(chromium, tmp_path):
    row = two(**{"missing-info": []})
    with opened(chromium, items=[row], tmp_path=tmp_path) as tab:
        assert "Difference 4: missing information, given by A only" in heads(tab)
        tab.click(version(4, 0))
        assert state(tab)["doc"]["missing-info"] == [missing()]
        assert pressed(tab) == [(4, 0)]
        tab.click(version(4, 1))
        assert state(tab)["doc"]["missing-info"] == []
        assert pressed(tab) == [(4, 1)]
        for name, errors in (("A", FIRST), ("B", SECOND)):
            tab.click(f"text=Take all of {name}")
            content = state(tab)["doc"]
            assert content["errors"] == plain(errors)
            assert content["missing-info"] == ([missing()] if name == "A" else [])
            assert content["corrected-prediction"] == f"{name} corrected it."
        assert pressed(tab) == [(number, 1) for number in range(1, 6)]  # all of B's
        press(tab, "Control+Enter")
        assert tab.locator("#problems li").count() == 0 and state(tab)["submitted"]


def test_an_annotation_without_errors_is_taken_as_such(chromium, tmp_path):
    empty = {**doc(), "no-error": True, "corrected-prediction": TEXT, "comment": "fine"}
    row = to_adjudicate(empty, {**doc(FIRST), "corrected-prediction": "Mended."})
    with opened(chromium, items=[row], tmp_path=tmp_path) as tab:
        assert tab.locator("#annotations .comments li").all_inner_texts() == [
            "A fine",
            "B no comment",
        ]
        tab.click("text=Take all of A")
        assert tab.is_checked("#no-error") and state(tab)["doc"]["no-error"]
        tab.click(version(1, 1))
        assert not tab.is_checked("#no-error") and state(tab)["doc"]["errors"] == plain(FIRST[:1])


def test_annotations_overlap_and_have_severities_where_the_schema_allows_it(chromium, tmp_path):
    severities = [
        {"name": name, "label": name, "key": key, "letter": key.lower()}
        for name, key in (("major", "M"), ("minor", "I"))
    ]
    task = task_with(tmp_path, overlap=True, severities=severities, comment="none")
    kind, other = [one.name for one in QA.schema.errors if one.needs == "nothing"][:2]
    a = [error(kind, 4, 11, severity="major"), error(other, 8, 14, severity="minor")]
    b = [error(kind, 4, 11, severity="minor"), error(other, 8, 14, severity="minor")]
    same = {"corrected-prediction": "Mended."}
    row = to_adjudicate({**doc(a), **same}, {**doc(b), **same})
    keys = ("annotations", "shared")
    page = page_with(task, [{**MADE_ROW, **{key: row[key] for key in keys}}])
    with opened(chromium, where=page) as tab:
        assert heads(tab) == ["Difference 1: different severities"]
        press(tab, ".", "Tab", "Enter")
        assert tab.locator("#errors > li").count() == 2
        assert tab.locator("#text .w.stacked.laned").count() == 1
        assert pressed(tab) == [(1, 1)]


# ---- what nobody decided is no decision ----------------------------------------------------------

# of three people: the kind of the first mark differs, two have the second, the third is one's own
VOTES = [
    [error("Irrelevant", 4, 11), error("Unverifiable", 24, 26)],
    [error("Incoherent", 4, 11), error("Unverifiable", 24, 26)],
    [error("Unverifiable", 4, 11), error("Incoherent", 33, 37)],
]
MENDED = {"corrected-prediction": "Mended."}


def three():
    return to_adjudicate(*({**doc(errors), **MENDED} for errors in VOTES))


def test_an_adjudicator_starts_from_the_majority_and_decides_every_difference(chromium, tmp_path):
    with opened(chromium, items=[three()], tmp_path=tmp_path) as tab:
        assert people(tab, 1) == ["A", "B", "C"]
        assert people(tab, 2) == ["AB", "C"] and people(tab, 3) == ["AB", "C"]
        leads = tab.locator("#difference-list .leads")
        assert leads.count() == 2 and pressed(tab) == []
        start = tab.locator("#difference-list .start").evaluate_all(
            "all => all.map((node) => node.dataset.key)"
        )
        assert start == ["difference-2-0", "difference-3-0"]
        assert tab.locator("#text .w.marked").all_inner_texts() == ["It"]
        press(tab, "Control+Enter")
        assert tab.locator("#problems li").all_inner_texts() == [
            "3 of 3 differences are not decided. Take the majority for the rest"
        ]
        tab.click("#problems .remedy")
        said = "The majority decides 2 differences. 1 difference is not decided."
        assert said in tab.inner_text("#message")
        assert decisions(tab) == {"response 24-26": "majority", "response 33-37": "majority"}
        press(tab, "Control+Enter")
        assert tab.locator("#problems li").all_inner_texts() == [
            "1 of 3 differences is not decided."
        ]
        message = "Not submitted: 1 of 3 differences is not decided."
        assert (focused(tab), tab.inner_text("#message")) == ("difference-1-0", message)
        press(tab, "Enter")
        assert tab.is_disabled("#take-majority")
        press(tab, "Control+Enter")
        submitted = state(tab)["submitted"]
        assert submitted["errors"] == [VOTES[0][1], VOTES[0][0]]
        assert submitted["decisions"]["response 4-11"] == "taken"


def test_what_the_adjudicator_changes_is_decided(chromium, tmp_path):
    """Marks, their severities and reasons, missing information and the correction."""
    with opened(chromium, items=[two(**{"missing-info": []})], tmp_path=tmp_path) as tab:
        assert decisions_or_none(tab) is None
        tab.fill("#correction", "My own.")
        assert decisions(tab) == {"correction": "own"}
        word(tab, 1).click()
        press(tab, "4")  # Unverifiable: what no annotator said of this word
        assert decisions(tab) == {"correction": "own", "response 4-11": "own"}
        assert "decided: your own version" in tab.inner_text("#difference-list")
        word(tab, 14).click()  # no difference is there
        press(tab, "4")
        assert list(decisions(tab)) == ["correction", "response 4-11"]
        press(tab, "Control+z", "Control+z")
        assert decisions(tab) == {"correction": "own"}


def decisions_or_none(tab):
    work = tab.evaluate("Object.keys(localStorage).some((key) => key.includes('/annotation/'))")
    return decisions(tab) if work else None


def test_the_server_refuses_what_is_not_decided(tmp_path):
    write_json(tmp_path / "items.json", [three(), {**ITEM, "id": "plain"}])
    with serving(tmp_path, items=tmp_path / "items.json") as server:
        client = Client(server.port, "dora")
        given = client.next()
        content = {**doc([VOTES[0][1]]), **MENDED}
        content["errors"] = [{**one, "quote": "It"} for one in content["errors"]]

        def problems(**keys):
            body = client.submission(given, {**content, **keys})
            return client.call("POST", "/api/submissions", body)[1]

        names = ["response 4-11", "response 24-26", "response 33-37"]
        reason = "3 of 3 differences are not decided: response 4-11, response 24-26, response 33-37"
        for decided in ({}, {"decisions": {}}):
            (problem,) = problems(**decided)["problems"]
            assert problem == {"field": "feedback.decisions", "reason": reason}
        (problem,) = problems(decisions=dict.fromkeys(names[1:], "majority"))["problems"]
        assert problem["reason"] == "1 of 3 differences is not decided: response 4-11"
        wrong = {**dict.fromkeys(names, "taken"), "response 0-3": "own", "correction": "no"}
        assert [one["field"] for one in problems(decisions=wrong)["problems"]] == [
            "feedback.decisions.response 0-3",
            "feedback.decisions.correction",
        ]
        (problem,) = problems(decisions={**dict.fromkeys(names, "taken"), names[0]: "x"})[
            "problems"
        ]
        assert problem["reason"] == "'x' is none of taken, majority, own"
        assert "uuid" in problems(decisions=dict.fromkeys(names, "taken"))
        given = client.next()
        content = {**doc(), "no-error": True, "corrected-prediction": TEXT}
        (problem,) = problems(decisions={})["problems"]
        assert "must be left out" in problem["reason"]
        assert "uuid" in problems()


def test_annotations_that_cannot_be_shown_are_left_out(chromium, tmp_path):
    wrong = [
        {"annotations": "x"},
        {"annotations": [None, 1]},
        {"annotations": [doc([error(start=-5, end=900)])]},
        {"shared": None},
        {"shared": {"errors": 1}},
    ]
    items = [{**two(), **one, "id": str(i)} for i, one in enumerate(wrong)]
    with opened(chromium, items=items, tmp_path=tmp_path) as tab:
        for one in wrong:
            assert not tab.is_visible("#annotations"), one
            assert tab.locator("#text .w").count() == 15
            press(tab, "]")


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
