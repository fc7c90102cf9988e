"""Adjudication of comparisons and ratings: disagreement, the export, the server and the pages."""

import json
from pathlib import Path

import pytest
from made_tasks import ROW as MADE_ROW
from made_tasks import page_with, saved, task_with
from page_helpers import QA, downloaded, opened, press, refused, state
from rating_tasks import QUALITY, rating_task, row, write_page
from served_pages import visiting
from server_helpers import Client, serving
from test_database import Clock
from test_rules import ROW

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from interface_html import export
from interface_html.adjudicate import (
    AdjudicateSettings,
    adjudicate,
    different_preferences,
    different_ratings,
    items_to_adjudicate,
)
from interface_html.assignments import Receipt
from interface_html.database import Database
from interface_html.decisions import read_decisions
from interface_html.differences import undecided_all_bad_problems
from interface_html.format import COMPARISONS, RATED, Item
from interface_html.items import item_json, read_items
from interface_html.lead import item_summary
from interface_html.stored import Submission, read_database
from interface_html.submissions import SubmissionsSettings, write_submissions
from interface_html.tasks import FeedbackTask

OUTPUTS = ("first", "second", "third")
# of the pairs first-second, first-third, second-third
BEST_FIRST = [1, 1, 1]  # first > second > third
ALL_TIES = [0, 0, 0]
NO_RANKING = [0, 0, 1]  # first = second and first = third, but second > third
CYCLE = [1, 2, 1]


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> FeedbackTask:
    folder = tmp_path_factory.mktemp("values")
    return rating_task(folder, outputs=OUTPUTS, comparison="Compare the texts.")


def comparison(preference, annotator="anna", revision=1, **more) -> dict:
    return {"annotator": annotator, "revision": revision, "preference": preference, **more}


def rated(*values, annotator="anna", **more) -> dict:
    """Ratings; `values` has quality and clarity of each output."""
    pairs = zip(OUTPUTS, values, strict=True)
    ratings = {output: {"quality": one, "clarity": two} for output, (one, two) in pairs}
    return {"annotator": annotator, "revision": 1, "ratings": ratings, **more}


ANNA = rated((4, 80), (2, 0), (3, 50), comment="Hm.")
BEN = rated((4, 60), (3, 0), (3, 50), annotator="ben")


def to_decide(number=0, **changes) -> dict:
    """A row with two comparisons and two ratings, which have a value in common each."""
    first = comparison(BEST_FIRST, comment="The second has an error.")
    second = comparison([1, 0, 2], "ben", 2, **{"all-bad": True})
    keys = {COMPARISONS: [first, second], RATED: [ANNA, BEN]}
    return row(number, OUTPUTS, **{**keys, **changes})


# ---- the programs --------------------------------------------------------------------------------


def test_different_values_by_hand(task):
    docs = [{"preference": value} for value in (BEST_FIRST, [1, 0, 2], ALL_TIES)]
    assert different_preferences(docs[:1] * 2) == 0
    assert different_preferences(docs[:2]) == pytest.approx(2 / 3)
    # Each person gave 3 values. The first and second person differ in 2 of them, the first and
    # third in 3, the second and third in 2.
    assert different_preferences(docs) == pytest.approx(7 / 9)
    # quality has 1 to 5, clarity 0 to 100: distances 0 20, 1 0, 0 0
    assert different_ratings(task.schema, [ANNA, BEN]) == pytest.approx((0.2 + 1 / 4) / 6)
    opposite = rated((1, 0), (1, 0), (1, 0)), rated((5, 100), (5, 100), (5, 100))
    assert different_ratings(task.schema, opposite) == 1


def submission(item, annotator, page, doc, revision=1) -> Submission:
    order = list(range(len(OUTPUTS)))
    times = {"seconds": 1.0, "created": 1.0, "wall": None}
    guideline = {"guideline": "1", "guideline_sha256": None}
    return Submission(item, annotator, page, doc, order, revision=revision, **times, **guideline)


def test_the_largest_disagreement_of_a_page_decides_the_order(task):
    items = [Item(str(i), {"prompt": f"{i}?", **dict.fromkeys(OUTPUTS, "a")}) for i in range(4)]
    values = {"0": (BEST_FIRST, BEST_FIRST), "1": (BEST_FIRST, ALL_TIES), "2": (ALL_TIES,)}
    given = []
    for item, preferences in values.items():
        for name, preference in zip(("anna", "ben"), preferences):
            doc = {"preference": preference, "order": [0, 1, 2], "seen": [], "flag": True}
            given.append(submission(item, name, "comparison", {"preference": CYCLE, "order": []}))
            given.append(submission(item, name, "comparison", doc, revision=2))
    for item, other in (("0", BEN), ("2", ANNA)):
        for name, judged in (("anna", ANNA), ("ben", other)):
            doc = {"ratings": judged["ratings"], "order": [0, 1, 2], "comment": "So."}
            given.append(submission(item, name, "rating", doc))
    chosen = items_to_adjudicate(task.schema, items, given)
    # comparisons of 1 differ wholly, ratings of 0 a little, of 2 not at all; 3 was not judged
    assert [item.id for item in chosen] == ["1", "0"]
    assert chosen[0].row[COMPARISONS] == [
        comparison(BEST_FIRST, "anna", 2),
        comparison(ALL_TIES, "ben", 2),
    ]
    assert RATED not in chosen[0].row and COMPARISONS not in chosen[1].row
    assert chosen[1].row[RATED][1] == {**BEN, "comment": "So."}
    only = items_to_adjudicate(task.schema, items, given, ["rating"])
    assert [item.id for item in only] == ["0"]
    for name, judged in (("anna", ANNA), ("ben", BEN)):
        given.append(submission("1", name, "rating", {"ratings": judged["ratings"]}))
    again = items_to_adjudicate(task.schema, chosen, given, ["rating"])
    assert [item.id for item in again] == ["1", "0"]
    assert COMPARISONS not in again[0].row  # items have nothing of an earlier adjudication


def test_whether_any_output_is_acceptable_is_decided_too(task):
    items = [Item("0", {"prompt": "?", **dict.fromkeys(OUTPUTS, "a")})]
    doc = {"preference": ALL_TIES, "order": [0, 1, 2]}
    given = [submission("0", "anna", "comparison", doc | {"all-bad": True})]
    given.append(submission("0", "ben", "comparison", doc))
    assert len(items_to_adjudicate(task.schema, items, given)) == 1
    given.append(submission("0", "anna", "comparison", doc, revision=2))
    assert items_to_adjudicate(task.schema, items, given) == []


@pytest.fixture
def study(task, tmp_path) -> Path:
    """Items 0 to 3, compared and rated by anna, ben and cleo; item 3 by anna only."""
    write_json(tmp_path / "rows.json", [row(i, OUTPUTS) for i in range(4)])
    database = Database(tmp_path / "f.sqlite", "rated", per_item=3, clock=Clock())
    database.add_items(read_items(task, tmp_path / "rows.json"))
    for name, preference, judged in (
        ("anna", BEST_FIRST, ANNA),
        ("ben", [1, 0, 2], BEN),
        ("cleo", BEST_FIRST, ANNA),
    ):
        for page, part in (
            ("comparison", {"preference": preference}),
            ("rating", {"ratings": judged["ratings"]}),
        ):
            for _ in range(4 if name == "anna" else 3):
                given = database.next(name, page, 3)
                doc = {**part, "order": given.shown}
                uuid = f"{name}{page}{given.item.id}"
                database.submit(given, uuid, doc, Receipt(1, "1"))
    database.close()
    return tmp_path


def decisions_of(study, task, *values, rows="items.json") -> str:
    """A database in which dana decides; `values` has pairs of a page and a part of a document."""
    database = Database(study / "a.sqlite", "rated", clock=Clock())
    database.add_items(read_items(task, study / rows))
    for page, part in values:
        given = database.next("dana", page, 3)
        doc = {**part, "order": given.shown}
        database.submit(given, f"dana{page}{given.item.id}", doc, Receipt(1, "1"))
    database.close()
    return str(study / "a.sqlite")


def settings_of(monkeypatch, task, module="export"):
    """Let a program read the made task."""
    monkeypatch.setattr(f"interface_html.{module}.feedback_of", lambda _: task)


def adjudication(monkeypatch, task, study, **settings) -> list[Item]:
    settings_of(monkeypatch, task, "adjudicate")
    paths = {"db": str(study / "f.sqlite"), "out": str(study / "items.json")}
    return adjudicate(AdjudicateSettings(task="rated", **paths, **settings))


def test_the_export_takes_decisions_before_majority_and_median(monkeypatch, capsys, task, study):
    items = adjudication(monkeypatch, task, study)
    assert "3 items (3 with comparisons, 3 with ratings)" in capsys.readouterr().out
    assert [item.id for item in items] == ["0", "1", "2"]
    decided = rated((1, 1), (1, 1), (1, 1))["ratings"]
    path = decisions_of(
        study,
        task,
        ("comparison", {"preference": ALL_TIES}),
        ("rating", {"ratings": decided}),
        ("rating", {"ratings": ANNA["ratings"]}),
    )
    settings_of(monkeypatch, task)
    values = {"task": "rated", "db": str(study / "f.sqlite"), "out": str(study / "o.json")}
    export.export(export.FeedbackExportSettings(**values, policy="majority"))
    majority = json.loads((study / "o.json").read_text())
    assert [entry["preferences"] for entry in majority] == [BEST_FIRST] * 4
    assert majority[0]["ratings"][0] == {"quality": 4, "clarity": 80}
    export.export(export.FeedbackExportSettings(**values, policy="adjudicated", adjudicated=path))
    assert "2 adjudicated items (1 comparison, 2 ratings)" in capsys.readouterr().out
    rows = json.loads((study / "o.json").read_text())
    assert [entry["preferences"] for entry in rows] == [ALL_TIES, *[BEST_FIRST] * 3]
    assert rows[0]["ratings"] == [{"quality": 1, "clarity": 1}] * 3
    decided_keys = dict.fromkeys(("preferences", "ratings", "decided"), 0)
    assert rows[0] | decided_keys == majority[0] | decided_keys
    assert rows[2:] == majority[2:]
    assert [entry["decided"] for entry in rows] == [
        {"comparison": "adjudicated", "rating": "adjudicated"},
        {"comparison": "majority", "rating": "adjudicated"},
        {"comparison": "majority", "rating": "median"},
        {"comparison": "single", "rating": "single"},
    ]
    settings_of(monkeypatch, task, "submissions")
    out = study / "lines.jsonl"
    write_submissions(SubmissionsSettings(task="rated", db=path, out=str(out)))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["annotator"], line["role"]) for line in lines] == [("dana", "adjudicator")] * 3
    names = [{"annotator": name, "revision": 1} for name in ("anna", "ben", "cleo")]
    assert [line["decided_between"] for line in lines] == [names] * 3


def test_an_adjudicator_gets_an_item_only_where_there_is_a_decision(monkeypatch, task, study):
    adjudication(monkeypatch, task, study, pages="rating")
    items = read_items(task, study / "items.json")
    plain = read_items(task, study / "rows.json")[3:]
    database = Database(study / "a.sqlite", "rated", clock=Clock())
    database.add_items([*items, *plain])
    # item 3 is not from an adjudication, and is given on every page
    assert database.progress("dana", "rating") == (0, 4)
    assert database.progress("dana", "comparison") == (0, 1)
    assert database.next("dana", "comparison", 3).item.id == "3"
    assert database.next("dana", "rating", 3).item.id == "0"
    other = database.next("eve", "comparison", 3)
    assert other is None
    database.close()
    assert item_summary([*items, *plain], "comparison", [], 1)["total"] == 1
    assert item_summary([*items, *plain], "rating", [], 1)["total"] == 4


def test_a_judgement_on_a_page_without_a_decision_is_no_decision(monkeypatch, task, study):
    """Such as in a database whose items were given on all pages."""
    adjudication(monkeypatch, task, study, pages="rating")
    database = Database(study / "a.sqlite", "rated", clock=Clock())
    database.add_items(read_items(task, study / "items.json"))
    database.write(lambda sql: sql.execute("DELETE FROM withheld"))
    given = database.next("dana", "comparison", 3)
    doc = {"preference": ALL_TIES, "order": given.shown}
    database.submit(given, "dana", doc, Receipt(1, "1"))
    database.close()
    items = read_items(task, study / "rows.json")
    assert read_decisions(task, items, str(study / "a.sqlite")) == {}


def test_there_must_be_two_judgements_and_such_a_page(monkeypatch, task, study):
    message = "the task rated has no page `annotation`: set pages=comparison,rating"
    with pytest.raises(UserError, match=message):
        adjudication(monkeypatch, task, study, pages="annotation")
    path = decisions_of(study, task, rows="rows.json")
    with pytest.raises(UserError, match="no item with two comparisons or two ratings"):
        adjudicate(AdjudicateSettings(task="rated", db=path, out=str(study / "x.json")))


def test_items_are_read_and_written_byte_for_byte_and_feedback_has_no_submissions(task, tmp_path):
    for one, rows in (
        (task, [to_decide(0, note=["é", {"a": None}]), to_decide(1)]),
        (QA, [{"id": "q", **ROW, COMPARISONS: [comparison([0] * 6)]}]),
    ):
        path = tmp_path / "items.json"
        path.write_text(json.dumps(rows, indent=2))
        items = read_items(one, path)
        written = [item_json(one, item) for item in items]
        for entry, given in zip(written, rows, strict=True):
            assert entry == given  # submissions come last, and nothing else moves
        path.write_text(json.dumps(written, indent=2))
        again = [item_json(one, item) for item in read_items(one, path)]
        assert json.dumps(again, indent=2) == path.read_text()
        for item in items:
            assert not {COMPARISONS, RATED} & set(one.format.feedback_row(one.schema, item))


WRONG = [
    ({COMPARISONS: "x"}, "submitted comparisons`: "),
    ({COMPARISONS: [None]}, r"submitted comparisons\[0\]`: "),
    ({COMPARISONS: [{"annotator": "anna"}]}, r"submitted comparisons\[0\].preference`: missing"),
    ({COMPARISONS: [comparison([1, 1])]}, "has 2 entries, must have 3"),
    ({COMPARISONS: [comparison([1, 1, 3])]}, r"\[0\].preference\[2\]`: 3 is none of"),
    ({COMPARISONS: [comparison(CYCLE)]}, "goes in a circle"),
    ({COMPARISONS: [comparison(ALL_TIES, **{"all-bad": 1})]}, r"\[0\].all-bad`: "),
    ({COMPARISONS: [comparison(ALL_TIES, comment=["x"])]}, r"\[0\].comment`: "),
    ({COMPARISONS: comparison(ALL_TIES)}, "submitted comparisons`: "),
    ({RATED: ANNA}, "submitted ratings`: "),
    ({RATED: [ANNA, {"ratings": {}}]}, r"submitted ratings\[1\].ratings.first`: missing"),
    ({RATED: [rated((6, 0), (1, 0), (1, 0))]}, "6 is no whole number from 1 to 5"),
    ({RATED: [{**ANNA, "comment": 1}]}, r"\[0\].comment`: "),
]


@pytest.mark.parametrize("wrong, reason", WRONG)
def test_submissions_of_a_wrong_form_are_refused(task, tmp_path, wrong, reason):
    write_json(tmp_path / "items.json", [to_decide(**wrong)])
    with pytest.raises(UserError, match=reason):
        read_items(task, tmp_path / "items.json")


def test_the_browser_refuses_the_same_submissions(chromium, task, tmp_path):
    with opened(chromium, "comparison", where=write_page(task, [to_decide()], "comparison")) as tab:
        for wrong, _ in WRONG:
            notice = refused(tab, tmp_path / "items.json", [to_decide(**wrong)])
            [key] = wrong
            assert f"`{key}` does not have the form" in notice, wrong
        assert tab.is_visible("#deciding")


@pytest.mark.parametrize("key", ["annotations", COMPARISONS, RATED])
def test_no_program_stops_at_a_list_of_no_objects(task, tmp_path, key):
    write_json(tmp_path / "items.json", [row(0, OUTPUTS, **{key: [1], "shared": {}})])
    with pytest.raises(UserError, match=r"\[0\]"):
        read_items(task, tmp_path / "items.json")


# ---- the comparison page -------------------------------------------------------------------------


def letters(tab) -> dict[str, str]:
    """The letter under which each output is shown."""
    texts = tab.locator(".candidate .output").all_inner_texts()
    return {text.split()[1]: "ABC"[i] for i, text in enumerate(texts)}


def shown_pairs(tab) -> list[tuple[int, bool]]:
    """For each card the index of its pair in a preference, and whether it is turned."""
    order = state(tab, "comparison")["order"]
    pairs = [(0, 1), (0, 2), (1, 2)]
    cards = [(order[i], order[j]) for i, j in pairs]
    return [(pairs.index((min(card), max(card))), card[0] > card[1]) for card in cards]


def doc(tab, page="comparison") -> dict:
    return state(tab, page)["doc"]


def where(task, *rows, page="comparison", **options):
    return write_page(task, list(rows) or [to_decide()], page, **options)


def buttons(tab, card: int) -> list[str]:
    return tab.locator(f"[data-card='{card}'] .takes button").all_inner_texts()


def test_comparisons_are_beside_each_other_with_their_differences(chromium, task):
    with opened(chromium, "comparison", where=where(task)) as tab:
        text = tab.inner_text("#deciding")
        assert "3 differences" in text and "The second has an error." in text
        for name in ("anna", "ben"):
            assert name not in tab.inner_text("main")
        a, b, c = (letters(tab)[output] for output in OUTPUTS)
        # ben: 1 > 2 and 3 > 2, 1 = 3
        ties = " = ".join(sorted([a, c]))
        assert f"{a} > {b} > {c}" in text and f"{ties} > {b}" in text
        assert doc(tab)["preference"] == [1, None, None]  # what both have
        for card, (k, turned) in enumerate(shown_pairs(tab)):
            sides = tab.inner_text(f"[data-card='{card}'] legend").split("?")[0].split(" or ")
            first, second = reversed(sides) if turned else sides
            words = ["Equal", f"{first} better", f"{second} better"]  # of the values 0, 1, 2
            expected = [f"X {words[BEST_FIRST[k]]}", f"Y {words[[1, 0, 2][k]]}"]
            assert buttons(tab, card) == expected
            differs = "They differ" in tab.inner_text(f"[data-card='{card}'] legend")
            assert differs == (k > 0)
            assert ("differs" in tab.get_attribute(f"[data-card='{card}']", "class")) == differs


def test_comparisons_are_decided_with_the_keyboard_alone(chromium, task):
    with opened(chromium, "comparison", where=where(task)) as tab:
        press(tab, ".")  # the row of the table comes first
        assert "No text is acceptable (1 of 3)" in tab.inner_text("#message")
        press(tab, "y")
        assert doc(tab)["all-bad"] is True
        assert "Taken from Y: No text is acceptable: yes." in tab.inner_text("#message")
        press(tab, "x")
        assert doc(tab)["all-bad"] is False  # which is another thing than not to decide it
        press(tab, ".")
        cards = [card for card, (k, _) in enumerate(shown_pairs(tab)) if k > 0]
        here = "document.activeElement.closest('.pair').dataset.card"
        assert tab.evaluate(here) == str(cards[0])
        k, turned = shown_pairs(tab)[cards[0]]
        press(tab, "y")  # and goes on to the next difference
        assert doc(tab)["preference"][k] == [1, 0, 2][k]
        assert tab.evaluate(here) == str(cards[1])
        other, _ = shown_pairs(tab)[cards[1]]
        press(tab, "x")
        assert doc(tab)["preference"][other] == BEST_FIRST[other]
        press(tab, ",", "Enter")  # X has focus on the card
        assert doc(tab)["preference"] == BEST_FIRST
        pressed = tab.locator(f"[data-card='{cards[0]}'] [aria-pressed=true]")
        assert pressed.all_inner_texts()[0].startswith("X")
        press(tab, "2")  # a value of one's own
        assert doc(tab)["preference"][k] == (1 if turned else 2)
        press(tab, "Shift+Y")
        assert doc(tab)["preference"] == [1, 0, 2] and doc(tab)["all-bad"] is True
        press(tab, "Control+z")
        assert doc(tab)["preference"][k] == (1 if turned else 2) and doc(tab)["all-bad"] is False
        press(tab, "Shift+X", "Control+Enter")
        assert "submitted" in tab.inner_text("#position")
        [decided] = json.loads(downloaded(tab))
        how = {"comparison": "adjudicated"}
        assert decided == row(0, OUTPUTS, preferences=BEST_FIRST, decided=how)
        [record] = saved(tab, "#record")
        names = [{"annotator": "anna", "revision": 1}, {"annotator": "ben", "revision": 2}]
        assert record["role"] == "adjudicator" and record["annotator"] == "anna"
        assert record["decided_between"] == {"comparison": names}


def test_whether_any_text_is_acceptable_is_decided_where_people_differ(chromium, task):
    """As everything else: what nobody touched is no decision."""
    second = comparison(BEST_FIRST, "ben", 2, **{"all-bad": True})
    page = where(task, to_decide(**{COMPARISONS: [comparison(BEST_FIRST), second]}))
    indeterminate = "document.querySelector('#all-bad').indeterminate"
    with opened(chromium, "comparison", where=page) as tab:
        assert tab.evaluate(indeterminate)
        press(tab, "Control+Enter")
        reason = "Whether no text is acceptable is not decided."
        assert tab.locator("#problems li").all_inner_texts() == [reason]
        assert tab.evaluate("document.activeElement.textContent") == "Take X"
        assert tab.locator("#deciding [aria-pressed=true]").count() == 0
        tab.click("#all-bad")
        tab.click("#all-bad")
        assert doc(tab)["all-bad"] is False and not tab.evaluate(indeterminate)
        press(tab, "Control+Enter")
        assert "submitted" in tab.inner_text("#position")
    differ, same = to_decide(), to_decide(**{COMPARISONS: [second, second]})
    given = {"preference": BEST_FIRST, "order": [0, 1, 2]}
    for item, decided, count in ((differ, {}, 1), (differ, {"all-bad": False}, 0), (same, {}, 0)):
        found = undecided_all_bad_problems(item[COMPARISONS], {**given, **decided})
        assert [field for field, _ in found] == ["all-bad"] * count


def test_ranks_are_taken_where_a_preference_is_a_ranking(chromium, task):
    several = [comparison(NO_RANKING), comparison(BEST_FIRST, "ben"), comparison(ALL_TIES, "cleo")]
    page = where(task, to_decide(**{COMPARISONS: several}))
    with opened(chromium, "comparison", where=page) as tab:
        assert "no ranking" in tab.inner_text("#deciding")
        press(tab, "m")
        best = letters(tab)["first"]
        card = "ABC".index(best)
        shown = tab.locator(f"[data-card='{card}'] .takes > *").all_inner_texts()
        assert shown == ["X no ranking", "Y 1", "Z 1"]
        press(tab, *["ArrowDown"] * card, "y")
        assert doc(tab)["ranks"][0] == 1
        press(tab, "Shift+Y")
        assert doc(tab)["ranks"] == [1, 2, 3] and doc(tab)["preference"] == BEST_FIRST
        press(tab, "Shift+X")  # no ranking: shown as pairs
        assert doc(tab)["mode"] == "pairs" and doc(tab)["preference"] == NO_RANKING


# ---- the rating page -----------------------------------------------------------------------------


def card_of(tab, output: str, scale: int) -> int:
    return "ABC".index(letters(tab)[output]) * 2 + scale


def test_ratings_are_decided_with_the_keyboard_alone(chromium, task):
    with opened(chromium, "rating", where=where(task, page="rating")) as tab:
        text = tab.inner_text("#deciding")
        assert "2 differences" in text and "Quality: 4, Clarity: 80" in text and "Hm." in text
        assert tab.inner_text("#rated") == "4 of 6 ratings given"
        places = sorted([card_of(tab, "first", 1), card_of(tab, "second", 0)])
        classes = [tab.get_attribute(f"[data-card='{i}']", "class") for i in range(6)]
        assert [i for i, value in enumerate(classes) if "differs" in value] == places
        assert buttons(tab, card_of(tab, "first", 1)) == ["X 80", "Y 60"]
        press(tab, ".", "y", "y")  # the second key is at the second difference
        ratings = doc(tab, "rating")["ratings"]
        assert ratings["first"] == {"quality": 4, "clarity": 60}
        assert ratings["second"] == {"quality": 3, "clarity": 0}
        assert "Taken from Y: Text " in tab.inner_text("#message")
        tab.click(f"[data-card='{card_of(tab, 'first', 1)}'] input.percent")
        press(tab, "x")  # letters are no numbers, so it takes in a field too
        assert doc(tab, "rating")["ratings"]["first"]["clarity"] == 80
        field = f"[data-card='{card_of(tab, 'first', 1)}'] input.percent"
        assert tab.input_value(field) == "80"
        tab.fill(field, "7")
        press(tab, "Escape")
        pressed = f"[data-card='{card_of(tab, 'first', 1)}'] [aria-pressed=true]"
        assert tab.locator(pressed).count() == 0
        press(tab, "Shift+X")
        assert doc(tab, "rating")["ratings"] == ANNA["ratings"]
        assert tab.locator(pressed).all_inner_texts() == ["X 80"]
        press(tab, "Control+z", "Control+Enter")
        [decided] = json.loads(downloaded(tab))
        expected = [{"quality": 4, "clarity": 7}, {"quality": 3, "clarity": 0}]
        assert decided["ratings"] == [*expected, {"quality": 3, "clarity": 50}]
        assert not {COMPARISONS, RATED} & set(decided)
        [record] = saved(tab, "#record")
        names = [{"annotator": name, "revision": 1} for name in ("anna", "ben")]
        assert record["decided_between"] == {"rating": names}


def test_a_pressed_button_keeps_the_focus_and_letters_of_a_comment_take_nothing(chromium, tmp_path):
    made = task_with(tmp_path, ratings=[QUALITY], comment="optional")
    values = [[dict(quality=4)] * 4, [dict(quality=n) for n in (3, 4, 4, 4)]]
    rated_by = [
        {"annotator": str(n), "revision": 1, "ratings": dict(zip(made.schema.fields.outputs, one))}
        for n, one in enumerate(values)
    ]
    page = page_with(made, [{**MADE_ROW, RATED: rated_by}], "rating")
    with opened(chromium, "rating", where=page) as tab:
        button = tab.locator(".pair.differs .takes button").nth(1)
        key = button.get_attribute("data-key")
        button.click()
        assert tab.evaluate("document.activeElement.dataset.key") == key
        assert tab.get_attribute(f"[data-key='{key}']", "aria-pressed") == "true"
        first = made.schema.fields.outputs[0]
        assert doc(tab, "rating")["ratings"][first] == {"quality": 3}
        tab.click("#comment")
        tab.keyboard.type("x.X")
        assert doc(tab, "rating")["ratings"][first] == {"quality": 3}
        assert doc(tab, "rating")["comment"] == "x.X"


# ---- both pages ----------------------------------------------------------------------------------


def test_decisions_of_served_pages_are_exported(chromium, tmp_path):
    """Of qa-feedback: its rows have a preference, and the export its published form."""
    item = {**ROW, "question": "Who sat?"}
    database = Database(tmp_path / "f.sqlite", "qa_feedback", per_item=2, clock=Clock())
    database.add_items([Item("0", item), Item("1", {**item, "question": "Other?"})])
    for name, value in (("anna", 1), ("ben", 2)):
        given = database.next(name, "comparison", 4)
        doc = {"preference": [value] * 6, "order": given.shown, "comment": f"by {name}"}
        database.submit(given, name, doc, Receipt(1, "1"))
    database.close()
    paths = {"task": "qa_feedback", "db": str(tmp_path / "f.sqlite")}
    adjudicate(AdjudicateSettings(**paths, out=str(tmp_path / "items.json")))
    folder = tmp_path / "adjudication"
    folder.mkdir()
    with serving(folder, items=tmp_path / "items.json") as server:
        client = Client(server.port, "dana")
        assert client.next() is None  # nothing is to be annotated
        given = client.next("comparison")
        entries = given["item"][COMPARISONS]
        assert [set(entry) for entry in entries] == [{"preference", "comment"}] * 2
        with visiting(chromium, server, "comparison", who="dana") as tab:
            assert "6 differences" in tab.inner_text("#deciding")
            press(tab, "Shift+Y", "Control+Enter")
            tab.wait_for_selector("#empty:not([hidden])")
        path = str(server.db)
        values = {**paths, "out": str(tmp_path / "o.json"), "pages": "comparison"}
        export.export(
            export.FeedbackExportSettings(**values, policy="adjudicated", adjudicated=path)
        )
    [exported] = json.loads((tmp_path / "o.json").read_text())
    assert exported == {**item, "preference": [2] * 6, "decided": {"comparison": "adjudicated"}}
    [decision] = read_database(path, "qa_feedback").submissions
    assert decision.annotator == "dana"


def doc_or_fresh(tab) -> list:
    """The preference that the page shows."""
    return [
        tab.locator(f"[data-card='{card}'] input:checked").count() and BEST_FIRST[k]
        for k, card in sorted((k, card) for card, (k, _) in enumerate(shown_pairs(tab)))
    ]


def test_people_without_a_difference_and_items_without_people(chromium, task, tmp_path):
    same = [comparison(BEST_FIRST), comparison(BEST_FIRST, "ben")]
    page = where(task, to_decide(0, **{COMPARISONS: same}))
    with opened(chromium, "comparison", where=page) as tab:
        assert doc_or_fresh(tab) == BEST_FIRST
        press(tab, ".")
        assert "do not differ" in tab.inner_text("#message")
        write_json(tmp_path / "other.json", [row(5, OUTPUTS)])
        tab.set_input_files("#file", tmp_path / "other.json")
        tab.wait_for_selector("#deciding", state="hidden")
        press(tab, "Escape", ".")
        assert "no submissions to decide between" in tab.inner_text("#message")
        press(tab, "x")
        assert tab.locator(".takes").count() == 0
        assert tab.locator("#choices input:checked").count() == 0
