"""The influence of suggestions: arms, F1 with the suggestions, and annotators who copy them."""

import json
import math
from dataclasses import replace

import pytest
from page_helpers import ITEM

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.stats import Interval, share_interval
from interface_html.anchoring import (
    AnchoringSettings,
    Annotation,
    accepted_share,
    accepts_nearly_all,
    arm_figures,
    f1_difference,
    f1_parts,
    influences,
    write_report,
)
from interface_html.assignments import Receipt
from interface_html.database import Database
from interface_html.format import Item


def suggested(start: int, end: int, kind="Irrelevant", score=0.9) -> dict:
    place = {"type": kind, "start": start, "end": end}
    return {**place, "explanation": "", "score": score, "source": "rm"}


def marked(start: int, end: int, kind="Irrelevant") -> dict:
    return {"error type": kind, "explanation": "", "start": start, "end": end}


def annotation(
    item="a", is_shown=True, suggestions=(), marks=(), given=(), seconds=None, who="anna", prompt=""
):
    parts = list(suggestions), list(marks), list(given)
    return Annotation(who, item, prompt, is_shown, *parts, seconds)


def test_items_of_one_document_are_one_unit():
    def difference(documents):
        annotations = []
        for number in range(40):
            one = annotation(
                str(number),
                number % 2 == 0,
                [suggested(0, 5)],
                [marked(0, 5)] if number % 3 else [],
                prompt=f"Q{number}",
            )
            annotations.append(replace(one, cluster=f"d{number // 2 % documents}"))
        return f1_difference(annotations)

    assert difference(20).has_bounds and not difference(4).has_bounds


# ---- figures by hand -----------------------------------------------------------------------------


def test_f1_counts_overlaps_of_one_kind():
    suggestions = [suggested(0, 5), suggested(10, 15), suggested(20, 25, "Incoherent")]
    marks = [marked(4, 6), marked(20, 25)]
    # the first suggestion and the first mark match; five spans in all
    assert f1_parts(annotation(suggestions=suggestions, marks=marks)) == (2, 5)
    assert f1_parts(annotation(suggestions=suggestions)) == (0, 3)


def test_seconds_of_the_arms():
    one = [suggested(0, 5)]
    annotations = [
        annotation("a", True, one, [marked(0, 5)] * 2, ["accepted"], 30.0),
        annotation("a", True, one, [], ["rejected"], 10.0, who="ben"),
        annotation("b", True, one, [marked(0, 5)], ["accepted"], 20.0),
        annotation("c", False, one, [marked(0, 5)] * 2, [], 90.0),
        annotation("d", False, one, [marked(0, 5)], [], None),
    ]
    figures = arm_figures(annotations)
    assert figures["shown"]["annotations"] == 3 and figures["hidden"]["annotations"] == 2
    assert figures["shown"]["active seconds per item"].mean == 60 / 3
    assert figures["shown"]["active seconds per mark"].mean == 60 / 3
    assert figures["hidden"]["active seconds per item"].mean == 90
    assert figures["hidden"]["active seconds per mark"].mean == 45
    # item a has 20 seconds per annotation, and b has too: two items have no interval
    assert not figures["shown"]["active seconds per item"].has_bounds
    empty = arm_figures([])["hidden"]["active seconds per item"]
    assert empty == "undefined: no times were recorded"


def test_the_difference_of_the_arms():
    suggestions = [suggested(0, 5), suggested(10, 15)]
    copied = [marked(0, 5), marked(10, 15)]
    annotations = [
        annotation("a", True, suggestions, copied),
        annotation("b", True, suggestions, [marked(0, 5)]),
        annotation("c", False, suggestions, [marked(0, 5), marked(20, 25)]),
    ]
    # shown: 6 matches of 7 spans; hidden: 2 of 4
    assert f1_difference(annotations).mean == pytest.approx(6 / 7 - 2 / 4)
    assert f1_difference(annotations[:2]) == "undefined: no item with hidden suggestions"
    (anna,) = influences(annotations)
    assert anna.shown.mean == pytest.approx(6 / 7) and anna.hidden.mean == 0.5


def test_a_small_arm_widens_the_interval_of_the_difference():
    half = [suggested(0, 5), suggested(10, 15)], [marked(0, 5), marked(20, 25)]
    both = half[0], [marked(0, 5), marked(10, 15)]

    def difference(hidden):
        shown = [annotation(str(i), True, *(half if i % 2 else both)) for i in range(60)]
        unseen = [annotation(f"h{i}", False, *(half if i % 3 else both)) for i in range(hidden)]
        return f1_difference([*shown, *unseen])

    assert not difference(9).has_bounds  # nine items say too little about others
    wide, narrow = difference(12), difference(60)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def verdicts_of_items(*accepted: int, of: int) -> list[Annotation]:
    """One annotation per item, with `of` verdicts each."""
    annotations = []
    for number, count in enumerate(accepted):
        given = ["accepted"] * count + ["rejected"] * (of - count)
        annotations.append(annotation(str(number), suggestions=[ONE] * of, given=given))
    return annotations


def test_the_verdicts_on_one_item_are_one_unit():
    """Eight equal verdicts on an item say no more than one."""
    eight = accepted_share(verdicts_of_items(8, 8, 8, 0, 0, of=8))
    one = accepted_share(verdicts_of_items(1, 1, 1, 0, 0, of=1))
    assert isinstance(eight, Interval) and eight == one and eight.mean == 0.6
    assert eight.high - eight.low > 0.9 * (share_interval(3, 5).high - share_interval(3, 5).low)
    # two annotators of the same items are no further units
    assert accepted_share(verdicts_of_items(8, 8, 8, 0, 0, of=8) * 2) == eight


def test_items_with_one_prompt_are_one_unit():
    """Four outputs for each prompt, with equal marks and times, say no more than one."""

    def made(copies):
        annotations = []
        for i in range(24):
            marks = [marked(0, 5), marked(20, 25)][: 1 + i % 2]
            for copy in range(copies):
                given = ["accepted" if i % 3 else "rejected"] if i < 12 else []
                parts = [suggested(0, 5)], marks, given, 10.0 + i
                of = f"prompt {i}"
                annotations.append(annotation(f"{i}/{copy}", i < 12, *parts, prompt=of))
        return annotations

    one, four = influences(made(1))[0], influences(made(4))[0]
    for figure in ("shown", "hidden", "difference", "accepted"):
        single, copied = getattr(one, figure), getattr(four, figure)
        assert single.has_bounds
        assert (copied.low, copied.high) == pytest.approx((single.low, single.high))
    seconds = "active seconds per item"
    single, copied = (arm_figures(made(copies))["shown"][seconds] for copies in (1, 4))
    assert (copied.low, copied.high) == pytest.approx((single.low, single.high))


@pytest.mark.parametrize("accepted", [0, 4, 8])
def test_equal_shares_of_all_items_are_not_certain(accepted):
    assert not accepted_share(verdicts_of_items(accepted, of=8)).has_bounds
    of_items = verdicts_of_items(*[accepted] * 10, of=8)
    degrees = 9 if accepted == 4 else math.inf  # items of 0 or 1 are trials
    assert accepted_share(of_items) == share_interval(accepted / 8 * 10, 10, degrees)


def test_one_item_does_not_show_who_accepts_nearly_all():
    copier = verdicts_of_items(19, of=20)
    others = [replace(one, annotator="ben") for one in verdicts_of_items(*[10] * 40, of=20)]
    anna, _ = influences([*copier, *others])
    assert not anna.accepted.has_bounds and not anna.accepts_nearly_all


def test_who_accepts_nearly_all():
    few, many = Interval(0.5, 0.4, 0.6), Interval(0.95, 0.9, 1.0)
    assert accepts_nearly_all(many, few)
    assert not accepts_nearly_all(many, Interval(0.9, 0.85, 0.93))  # the model is good
    assert not accepts_nearly_all(Interval(0.8, 0.7, 0.9), few)  # more than others, not nearly all


# ---- from a database and from files --------------------------------------------------------------

ROW = {key: value for key, value in ITEM.items() if key != "id"}
ONE = suggested(4, 11)
ORIGIN = {"index": 0, "source": "rm", "score": 0.9, "verdict": "accepted"}
NOTHING = {"errors": [], "missing-info": [], "corrected-prediction": ROW["prediction 1"]}
COPIED = {"errors": [{**marked(4, 11), "origin": ORIGIN}], "missing-info": [], "suggestions": []}
COPIED |= {"corrected-prediction": "Mended.", "no-error": False}


def item(name: str, **values) -> Item:
    return Item(name, {**ROW, "question": f"{name}?", **values})


def test_the_report_of_a_database(tmp_path, capsys):
    database = Database(tmp_path / "f.sqlite", "qa_feedback", per_item=2)
    shown = item("a", suggestions=[ONE], suggestions_shown=True)
    hidden = item("b", suggestions=[ONE], suggestions_shown=False)
    database.add_items([shown, hidden, item("c")])
    for who, shown_doc in (
        ("anna", COPIED),
        ("ben", {**NOTHING, "suggestions": [{"index": 0, "verdict": "rejected"}]}),
    ):
        for number, doc in enumerate((shown_doc, NOTHING, NOTHING)):
            given = database.next(who, "annotation", 4)
            database.submit(given, f"{who}-{number}", doc, Receipt(10.0 * (number + 1), "1"))
    again = database.assignment(1, "anna")
    changed = {**COPIED, "corrected-prediction": "Mended again."}
    database.submit(again, "anna-again", changed, Receipt(5.0, "1"), seen=1)
    database.close()
    out = tmp_path / "report.json"
    settings = AnchoringSettings(task="qa_feedback", db=str(tmp_path / "f.sqlite"), out=str(out))
    anna, ben = write_report(settings)
    assert anna.accepted.mean == 1.0 and ben.accepted.mean == 0.0
    assert (anna.shown.mean, anna.hidden.mean) == (1.0, 0.0)
    assert not anna.accepts_nearly_all  # a single suggestion shows nothing
    report = read_json(out)
    assert report["arms"]["shown"]["annotations"] == 2
    assert report["arms"]["shown"]["active seconds per item"]["mean"] == (15 + 10) / 2
    assert report["arms"]["hidden"]["active seconds per item"]["mean"] == 20
    assert report["arms"]["hidden"]["active seconds per mark"] == (
        "undefined: no mark with a recorded time"
    )
    assert report["accept nearly all"] == []
    assert "more than the others: nobody" in capsys.readouterr().out


@pytest.fixture
def files(tmp_path):
    """Downloads of one annotator, and the items."""
    rows = [
        {"id": "a", **item("a").row, "suggestions": [ONE], "suggestions_shown": True},
        {"id": "b", **item("b").row, "suggestions": [ONE], "suggestions_shown": False},
    ]
    write_json(tmp_path / "items.json", rows)
    feedback = []
    for name, errors in (("b", []), ("a", [marked(4, 11)])):
        corrected = "Mended." if errors else ROW["prediction 1"]
        note = {"errors": errors, "missing-info": [], "corrected-prediction": corrected}
        feedback.append({**item(name).row, "feedback": note})
    write_json(tmp_path / "anna.json", feedback)
    records = []
    for name, given in (("b", []), ("a", ["accepted"])):
        seconds = {"annotation": 8.0, "comparison": None}
        decisions = {"shown": name == "a", "verdicts": given}
        entry = {"id": name, "annotator": "Anna", "order": None, "seconds": seconds}
        records.append({**entry, "suggestions": decisions})
    write_json(tmp_path / "record.json", records)
    return tmp_path


def report_of(files, **changes):
    names = {"items": "items.json", "files": "anna.json", "records": "record.json"}
    values = {"task": "qa_feedback"} | {key: str(files / name) for key, name in names.items()}
    return write_report(AnchoringSettings(**values | changes))


def test_the_report_of_files(files):
    (anna,) = report_of(files)
    assert anna.annotator == "Anna"
    assert (anna.shown.mean, anna.hidden.mean, anna.accepted.mean) == (1.0, 0.0, 1.0)
    assert anna.others == "undefined: no suggestion was shown" and not anna.accepts_nearly_all


def test_files_that_do_not_belong_together(files):
    with pytest.raises(UserError, match="set either a database"):
        report_of(files, items=None)
    with pytest.raises(UserError, match="0 records for 1 file"):
        report_of(files, records="")
    records = read_json(files / "record.json")
    wrong = [{**records[0], "suggestions": [1]}, records[1]]
    write_json(files / "record.json", wrong)
    with pytest.raises(UserError, match="row 0: `suggestions` must be an object"):
        report_of(files)
    write_json(files / "record.json", [{**records[0], "id": "a"}, records[1]])
    with pytest.raises(UserError, match="row 0: item a is not in .*, or has another text there"):
        report_of(files)
    write_json(files / "record.json", [{**one, "suggestions": None} for one in records])
    with pytest.raises(UserError, match="no annotation is of an item with suggestions"):
        report_of(files)
    assert json.loads((files / "items.json").read_text())[0]["suggestions"] == [ONE]
