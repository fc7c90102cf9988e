"""Adjudication: disagreement and shared marks by hand, the export, and the page that starts."""

import json

import pytest
from made_tasks import ROW as MADE_ROW
from made_tasks import page_with, task_with
from page_helpers import ITEM, LOOKS, TEXT, opened, press, state, violations, word
from server_helpers import Client, serving
from test_database import Clock
from test_liked_spans import submission
from test_rules import ROW, doc, error, missing
from test_served_pages import visiting

from fgrlhf.errors import UserError
from fgrlhf.files import write_json
from interface_html import export
from interface_html.adjudicate import (
    Settings,
    adjudicate,
    disagreement,
    items_to_adjudicate,
    read_decisions,
    shared_marks,
)
from interface_html.database import Database, Receipt
from interface_html.format import Item
from interface_html.items import read_items
from interface_html.submissions import Settings as LinesSettings
from interface_html.submissions import write_submissions
from interface_html.tasks import feedback_of

QA = feedback_of("qa_feedback")


def test_disagreement_by_hand():
    text = "abcd efgh"
    none, first, half = doc(), doc([error(start=0, end=4)]), doc([error(start=0, end=2)])
    assert disagreement(text, [none, none]) == 0
    assert disagreement(text, [first, first]) == 0
    assert disagreement(text, [first, none]) == 1
    assert disagreement(text, [first, half]) == pytest.approx(1 - 2 * 2 / (4 + 2))
    other = doc([error("Unverifiable", 0, 4)])
    assert disagreement(text, [first, other]) == 1
    # pairs: 4 of 8 characters twice, 0 of 4, 0 of 4
    assert disagreement(text, [first, first, none]) == pytest.approx(1 - 2 * 4 / (8 + 4 + 4))


def test_missing_information_is_a_disagreement():
    items = [Item("0", ROW), Item("1", ROW)]
    docs = [("0", "anna", doc()), ("0", "ben", doc())]
    docs += [("1", "anna", doc([], [missing()])), ("1", "ben", doc([], [missing(ids=(2,))]))]
    given = [submission(item, name, value) for item, name, value in docs]
    chosen = items_to_adjudicate(QA.schema, items, given)
    assert [item.id for item in chosen] == ["1", "0"]


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


def test_items_come_by_disagreement_with_their_annotations(study):
    settings = Settings(
        task="qa_feedback", db=str(study / "f.sqlite"), out=str(study / "items.json")
    )
    assert [item.id for item in adjudicate(settings)] == ["1", "0"]
    first, second = read_items(QA, study / "items.json")
    assert [entry["annotator"] for entry in first.row["annotations"]] == ["anna", "ben"]
    assert [len(entry["errors"]) for entry in first.row["annotations"]] == [1, 2]
    assert first.row["shared"]["errors"] == [error()] and first.feedback is None
    assert second.id == "0"


def decided(study, content):
    """The database of an adjudication in which item 1 was decided."""
    settings = Settings(
        task="qa_feedback", db=str(study / "f.sqlite"), out=str(study / "items.json")
    )
    adjudicate(settings)
    database = Database(study / "a.sqlite", "qa_feedback", clock=Clock())
    database.add_items(read_items(QA, study / "items.json"))
    given = database.next("cleo", "annotation", 4)
    assert given.item.id == "1"
    database.submit(given, "cleo1", content, Receipt(1, "1"))
    database.close()
    return str(study / "a.sqlite")


def test_the_export_takes_decisions_before_the_majority(study, capsys):
    third = doc([error("Incoherent", 0, 3)])
    values = {
        "task": "qa_feedback",
        "db": str(study / "f.sqlite"),
        "out": str(study / "o.json"),
        "pages": "annotation",
    }
    export.export(export.Settings(**values, policy="majority"))
    majority = json.loads((study / "o.json").read_text())
    path = decided(study, third)
    export.export(export.Settings(**values, policy="adjudicated", adjudicated=path))
    rows = json.loads((study / "o.json").read_text())
    assert [row["feedback"]["errors"] for row in rows] == [[error()], third["errors"], [error()]]
    assert [rows[0], rows[2]] == [majority[0], majority[2]] and rows[1].keys() == majority[1].keys()
    assert "1 adjudicated item" in capsys.readouterr().out
    lines = LinesSettings(task="qa_feedback", db=path, out=str(study / "lines.jsonl"))
    assert write_submissions(lines) == 1
    assert json.loads((study / "lines.jsonl").read_text())["role"] == "adjudicator"


def test_a_decision_counts_whatever_the_weight_of_its_adjudicator(study):
    values = {"task": "qa_feedback", "db": str(study / "f.sqlite"), "out": str(study / "o.json")}
    path = decided(study, doc([error("Incoherent", 0, 3)]))
    figures = {"items": 1, "labels": 1, "accuracy": 1.0, "balanced_accuracy": 0.5}
    figures |= {"undefined": None, "repeated_labels": 0, "consistency": None}
    weights = {"anna": 2.0, "ben": 2.0, "cleo": 0.0}
    pages = {name: {"annotation": {**figures, "weight": w}} for name, w in weights.items()}
    write_json(study / "r.json", {"task": "qa_feedback", "right": "gold", "annotators": pages})
    settings = export.Settings(
        **values,
        pages="annotation",
        policy="adjudicated",
        adjudicated=path,
        weights=str(study / "r.json"),
        least_weight=1.0,
    )
    export.export(settings)
    rows = json.loads((study / "o.json").read_text())
    assert [entry["error type"] for entry in rows[1]["feedback"]["errors"]] == ["Incoherent"]


def test_wrong_databases_are_refused(study):
    values = {"task": "qa_feedback", "db": str(study / "f.sqlite"), "out": str(study / "o.json")}
    with pytest.raises(UserError, match="belong together"):
        export.export(export.Settings(**values, policy="adjudicated"))
    items = [Item("0", ROW)]
    with pytest.raises(UserError, match="item '0' has no judgements to decide between"):
        read_decisions(QA, items, values["db"])
    path = decided(study, doc([error()]))
    with pytest.raises(UserError, match="item '1' is not in db=... with the same texts"):
        read_decisions(QA, items, path)
    with pytest.raises(UserError, match="has no item with two annotations"):
        adjudicate(Settings(task="qa_feedback", db=path, out=str(study / "x.json")))


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
    return tab.locator("#annotations tbody th").all_inner_texts()


def marked_in(tab, column):
    """The words that are marked in the text of an annotator."""
    words = tab.locator(f"#annotations tbody tr >> nth=0 >> td >> nth={column} >> .w.marked")
    return " ".join(words.all_inner_texts())


def focused(tab):
    return tab.evaluate("document.activeElement.getAttribute('aria-label')")


def test_annotations_are_beside_each_other_with_their_differences_in_words(chromium, tmp_path):
    with opened(chromium, items=[two()], tmp_path=tmp_path) as tab:
        assert tab.locator("#annotations thead th").all_inner_texts() == [
            "A Take all of A",
            "B Take all of B",
        ]
        assert marked_in(tab, 0) == "cat sat The cat" and marked_in(tab, 1) == "cat red. The cat"
        assert heads(tab) == [
            "Text",
            "Difference 1: different kinds, different spans",
            "Difference 2: marked by B only",
            "Difference 3: different evidence",
            "The same missing information",
            "Difference 4: different corrections",
        ]
        assert "4 differences" in tab.inner_text("#annotations .hint")
        text = tab.inner_text("#annotations")
        for words in ("Irrelevant: “cat sat”", "no mark", "repeats “The cat”", "found in 1:1"):
            assert words in text
        assert "annotator 0" not in tab.inner_text("body")
        tab.set_input_files("#file", write(tmp_path, [to_adjudicate(doc([error()]), doc())]))
        tab.wait_for_selector("text=1 difference.")
        assert heads(tab)[1] == "Difference 1: marked by A only"
        tab.set_input_files("#file", write(tmp_path, [ITEM]))
        tab.wait_for_selector("#annotations", state="hidden")
        press(tab, "Escape", ".")
        assert "no annotations to decide between" in tab.inner_text("#message")


def write(folder, rows):
    write_json(folder / "other.json", rows)
    return folder / "other.json"


def test_differences_are_decided_with_the_keyboard_alone(chromium, tmp_path):
    with opened(chromium, items=[two()], tmp_path=tmp_path) as tab:
        press(tab, ".")
        assert focused(tab).startswith("Take A (Difference 1: different kinds, different spans)")
        assert "(1 of 4)" in tab.inner_text("#message")
        assert tab.locator("#text .w.linked").all_inner_texts() == ["cat", "sat"]
        press(tab, "Enter")
        assert state(tab)["doc"]["errors"] == plain(FIRST[:1])
        assert "Taken from A: Irrelevant: “cat sat”." in tab.inner_text("#message")
        assert focused(tab).startswith("Take A (Difference 1")
        press(tab, "Tab", "Space")  # B's mark replaces what was taken from A
        assert state(tab)["doc"]["errors"] == plain(SECOND[:1])
        pressed = "#annotations [aria-pressed=true]"
        assert tab.locator(pressed).first.get_attribute("aria-label").startswith("Take B (Diff")
        press(tab, ".", "Tab", "Enter", ".", "Enter")
        assert state(tab)["doc"]["errors"] == plain([*SECOND[:2], FIRST[1]])
        press(tab, ",", "Enter")  # back at difference 2: A has no mark there
        assert state(tab)["doc"]["errors"] == plain([SECOND[0], FIRST[1]])
        press(tab, ",", ",", "Tab", "Enter")  # from the first to the last: B's correction
        assert state(tab)["doc"]["corrected-prediction"] == "B corrected it."
        press(tab, "Control+z", "Control+z")
        assert state(tab)["doc"]["errors"] == plain([*SECOND[:2], FIRST[1]])


def test_missing_information_and_a_whole_annotation_are_taken(chromium, tmp_path):
    row = two(**{"missing-info": []})
    with opened(chromium, items=[row], tmp_path=tmp_path) as tab:
        assert "Difference 4: missing information, given by A only" in heads(tab)
        button = "[aria-label^='Take {} (Difference 4']"
        tab.click(button.format("A"))
        assert state(tab)["doc"]["missing-info"] == [missing()]
        assert tab.get_attribute(button.format("A"), "aria-pressed") == "true"
        assert tab.get_attribute(button.format("B"), "aria-pressed") == "false"
        tab.click(button.format("B"))
        assert state(tab)["doc"]["missing-info"] == []
        for name, errors in (("A", FIRST), ("B", SECOND)):
            tab.click(f"text=Take all of {name}")
            content = state(tab)["doc"]
            assert content["errors"] == plain(errors)
            assert content["missing-info"] == ([missing()] if name == "A" else [])
            assert content["corrected-prediction"] == f"{name} corrected it."
        assert tab.locator("#annotations [aria-pressed=false]").count() == 5  # all of A's
        press(tab, "Control+Enter")
        assert tab.locator("#problems li").count() == 0 and state(tab)["submitted"]


def test_an_annotation_without_errors_is_taken_as_such(chromium, tmp_path):
    empty = {**doc(), "no-error": True, "corrected-prediction": TEXT, "comment": "fine"}
    row = to_adjudicate(empty, {**doc(FIRST), "corrected-prediction": "Mended."})
    with opened(chromium, items=[row], tmp_path=tmp_path) as tab:
        assert heads(tab)[-1] == "Comments"
        assert tab.locator("#annotations tbody tr:last-child td").all_inner_texts() == [
            "fine",
            "no comment",
        ]
        tab.click("text=Take all of A")
        assert tab.is_checked("#no-error") and state(tab)["doc"]["no-error"]
        tab.click("[aria-label^='Take B (Difference 1']")
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
    row = to_adjudicate(doc(a), doc(b))
    keys = ("annotations", "shared")
    page = page_with(task, [{**MADE_ROW, **{key: row[key] for key in keys}}])
    with opened(chromium, where=page) as tab:
        assert heads(tab)[1] == "Difference 1: different severities"
        assert tab.locator("#annotations .w.stacked").count() == 2
        press(tab, ".", "Tab", "Enter")
        assert tab.locator("#errors > li").count() == 2
        assert tab.get_attribute("[aria-label^='Take B (Diff']", "aria-pressed") == "true"


@pytest.mark.parametrize("width, scheme", LOOKS)
def test_axe_finds_nothing_in_annotations_to_decide_between(chromium, tmp_path, scheme, width):
    view = {"width": width, "height": 800}
    options = {"bypass_csp": True, "color_scheme": scheme, "viewport": view}
    with opened(chromium, items=[two()], tmp_path=tmp_path, **options) as tab:
        press(tab, ".", "Enter")
        assert violations(tab) == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    "wrong",
    [
        {"annotations": "x"},
        {"annotations": [None, 1]},
        {"annotations": [doc([error(start=-5, end=900)])]},
        {"shared": None},
        {"shared": {"errors": 1}},
    ],
)
def test_annotations_that_cannot_be_shown_are_left_out(chromium, tmp_path, wrong):
    with opened(chromium, items=[{**two(), **wrong}], tmp_path=tmp_path) as tab:
        assert not tab.is_visible("#annotations")
        assert tab.locator("#text .w").count() == 15


def test_a_decision_made_beside_the_annotations_is_exported(chromium, study):
    settings = Settings(
        task="qa_feedback", db=str(study / "f.sqlite"), out=str(study / "items.json")
    )
    adjudicate(settings)
    folder = study / "adjudication"
    folder.mkdir()
    with serving(folder, items=study / "items.json") as server:
        given = Client(server.port, "cleo").next()
        assert "annotator" not in given["item"]["annotations"][0]
        with visiting(chromium, server, who="cleo") as tab:
            tab.click("text=Take all of A")
            tab.fill("#correction", "Decided.")
            press(tab, "Control+Enter")
            tab.wait_for_selector("text=0 differences.")  # of the next item
        out = study / "o.json"
        values = {"task": "qa_feedback", "db": str(study / "f.sqlite"), "out": str(out)}
        path = str(server.db)
        export.export(
            export.Settings(**values, pages="annotation", policy="adjudicated", adjudicated=path)
        )
    rows = json.loads(out.read_text())
    assert plain(rows[1]["feedback"]["errors"]) == [error()]
    assert rows[1]["feedback"]["corrected-prediction"] == "Decided."


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
