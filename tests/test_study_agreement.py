"""Agreement measures: values by hand, another package's alpha, added noise, unanimous data."""

import json
import math

import pytest
from page_helpers import QA
from test_rules import ROW, doc, error, missing

from fgrlhf.base.errors import UserError
from fgrlhf.stats import Interval
from interface_html.agreement import FeedbackAgreementSettings, write_report
from interface_html.agreement_figures import report, share
from interface_html.annotator_pairs import (
    PairAgreement,
    judged_counts,
    pair_agreements,
    shared_counts,
)
from interface_html.format import Item
from interface_html.items import read_items
from interface_html.judged_items import GivenPreference, JudgedItem, judged_in_files, read_record

SCHEMA = QA.schema


def test_unanimous_and_single_judgements_say_why():
    one = JudgedItem(
        Item("0", ROW), {"a": doc([], none=True)}, {"a": GivenPreference([0] * 6, None)}
    )
    figures = report(QA, [one])
    name = "span F1, exact, positions"
    assert figures[name] == "undefined: no response was judged by two annotators"
    assert figures["preference alpha"] == "undefined: no item was compared by two annotators"
    segments = [figure for name, figure in figures.items() if "sentences" in name]
    assert segments
    for figure in segments:
        assert figure == "undefined: no item was annotated by two annotators"
    one.annotations["b"], one.comparisons["b"] = doc([], none=True), GivenPreference([0] * 6, None)
    figures = report(QA, [one])
    assert figures[name] == "undefined: no annotator of a shared response marked a span"
    assert figures["share won by the output shown first"] == "undefined: every pair is a tie"
    assert figures["ties"].mean == 1
    assert report(QA, [])["ties"].startswith("undefined")


def test_figures_by_hand():
    a = doc([error(), error("Unverifiable", 8, 11)], [missing(ids=(1, 2))])
    b = doc([error(end=11)], [missing(ids=(2,))])
    said = {
        "a": GivenPreference([1, 1, 1, 1, 1, 1], [0, 1, 2, 3]),
        "b": GivenPreference([1, 1, 1, 1, 1, 0], [3, 2, 1, 0]),
    }
    seconds = {"annotation": [100, 200], "comparison": [10, 20]}
    figures = report(QA, [JudgedItem(Item("0", ROW), {"a": a, "b": b}, said, seconds)])
    assert figures["span F1, exact, positions and types"].mean == 0
    # [0,7) with [0,11) both ways; Unverifiable alone
    assert figures["span F1, one-to-one overlap, positions and types"].mean == pytest.approx(2 / 3)
    assert figures["span F, MPP, positions and types"].mean == pytest.approx((1 + 7 / 11) / 3)
    assert figures["missing information F1"].mean == 0  # sentences 1 and 2, sentence 2
    # b saw them in the other order
    assert figures["share won by the output shown first"].mean == pytest.approx(6 / 11)
    assert figures["share won by the output listed first"].mean == 1
    assert figures["ties"].mean == pytest.approx(1 / 12)
    assert figures["active seconds, annotation"].mean == 150
    assert figures["active seconds, comparison"].mean == 15


def test_items_without_a_mark_do_not_widen_the_interval():
    """A draw of only such items would have no share, which would count as 0."""
    assert share([(2, 2), (0, 0), (0, 0), (0, 0)], "nothing") == Interval(1, math.nan, math.nan)
    assert share([(0, 0)], "nothing") == "undefined: nothing"
    # the seconds of an item without a mark count for the seconds per mark
    seconds = share([(3, 0), (1, 1)], "nothing")
    assert isinstance(seconds, Interval) and seconds.mean == 4


def test_an_unknown_order_does_not_count_as_the_order_listed():
    shown = "share won by the output shown first"
    listed = "share won by the output listed first"
    unknown = JudgedItem(Item("0", ROW), {}, {"a": GivenPreference([1] * 6, None)})
    figures = report(QA, [unknown])
    assert figures[shown].startswith("undefined: the order shown is known for no decided pair")
    assert figures[listed].mean == 1
    # b saw them in the other order
    known = JudgedItem(Item("1", ROW), {}, {"b": GivenPreference([1] * 6, [3, 2, 1, 0])})
    figures = report(QA, [unknown, known])
    # items without a known order are not resampled either
    assert figures[shown] == Interval(0, math.nan, math.nan) == report(QA, [known])[shown]
    unknown.comparisons["b"] = GivenPreference([1] * 6, [0, 1, 2, 3])
    assert report(QA, [unknown])[shown] == Interval(1, math.nan, math.nan)
    assert report(QA, [unknown, unknown, known])[shown].mean == pytest.approx(2 / 3)


def test_items_of_one_prompt_are_one_unit_of_comparisons():
    def judged(prompts, documents=None):
        entries = []
        for number in range(24):
            row = {**ROW, "question": f"Q{number % prompts}?", "prediction 1": f"A{number}."}
            if documents is not None:
                row["cluster"] = number % documents
            first, second = [1 + number % 2] * 6, [1] * 6
            said = {"a": GivenPreference(first, None), "b": GivenPreference(second, None)}
            entries.append(JudgedItem(Item(str(number), row), {}, said))
        return report(QA, entries)

    listed = "share won by the output listed first"
    assert judged(2)[listed] == Interval(0.75, math.nan, math.nan)
    assert "2 of at least 10 units" in str(judged(2)[listed])
    assert judged(12)[listed].has_bounds and judged(24)[listed].has_bounds
    assert "8 of at least 10 units" in str(judged(8)["preference alpha"])
    assert judged(24)["preference alpha"].has_bounds
    # items that share a document are one unit, whatever their prompts
    assert judged(24, 12)[listed] == judged(12)[listed]
    assert "2 of at least 10 units" in str(judged(24, 2)["preference alpha"])


def test_a_decided_item_is_named(tmp_path, capsys):
    rows = [{**ROW, "question": f"Q{n}?", "feedback": marked(n)} for n in range(2)]
    for name in "ab":
        (tmp_path / name).write_text(json.dumps(rows))
    write_report(FeedbackAgreementSettings(task="qa_feedback", files=f"{tmp_path}/a,{tmp_path}/b"))
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: 4 of the 6 marks are of one item, 'Q1?': it decides the F figures of spans"
    ]


def marked(number):
    errors = [error(), error("Unverifiable", 8, 11)][: number + 1]
    return {"errors": errors, "missing-info": [], "corrected-prediction": "x"}


def test_the_report_is_printed_and_written(tmp_path, capsys):
    rows = [
        {**ROW, "feedback": {**doc([error()]), "corrected-prediction": "x"}, "preference": [1] * 6}
    ] * 2
    rows = [
        {**row, "feedback": {k: v for k, v in row["feedback"].items() if k != "no-error"}}
        for row in rows
    ]
    for name in "ab":
        (tmp_path / name).write_text(json.dumps(rows))
    out = tmp_path / "report.json"
    files = f"{tmp_path}/a,{tmp_path}/b"
    write_report(FeedbackAgreementSettings(task="qa_feedback", files=files, out=str(out)))
    written = json.loads(out.read_text())
    assert written["span F1, exact, positions"] == {
        "mean": 1,
        "low": 1,
        "high": 1,
        **written["span F1, exact, positions"],
    }
    assert "all annotators chose 1" in written["preference alpha"]
    assert written["counts"] == {
        "items": 2,
        "annotators": 2,
        "items annotated by two or more": 2,
        "items compared by two or more": 2,
        "annotator pairs on annotated items": 2,
        "annotator pairs on compared items": 2,
    }
    lines = capsys.readouterr().out.splitlines()
    printed = [line.split("  ")[0] for line in lines if not line.startswith("  ")]
    figures = list(written)[
        : -len(("definitions", "counts", "items by annotator", "annotator pairs"))
    ]
    definitions = [f"{name}: {text}" for name, text in written["definitions"].items()]
    assert printed == [*written["counts"], *figures, *definitions] and len(figures) >= 12
    assert f"  {tmp_path}/a: 2 items" in lines
    assert lines[-1].startswith(f"  {tmp_path}/a and {tmp_path}/b: 2 annotated by both, span F1")
    with pytest.raises(UserError, match="either a database"):
        write_report(FeedbackAgreementSettings(task="qa_feedback"))


def test_real_preferences(qa_feedback, source):
    """Known figures of the rows: the first-listed answer wins more often; a few are no ranking."""
    items = [
        item
        for split in ("train", "dev")
        for item in read_items(QA, qa_feedback / f"{split}_feedback.json")
    ]
    judged = [
        JudgedItem(item, {}, {"published": GivenPreference(item.row["preference"], None)})
        for item in items
    ]
    figures = report(QA, judged)
    assert figures["share won by the output listed first"].low > 0.5
    assert figures["no ranking with ties"].mean == pytest.approx(
        16 / 350 if source == "published" else 1 / 14
    )


def test_files_are_matched_by_their_texts(tmp_path):
    """A has items 0, 1 and twice 2; b has 2, 3 and 0, in this order."""

    def write(name, numbers, preference):
        rows = [{**ROW, "question": f"Q{n}?", "preference": preference} for n in numbers]
        (tmp_path / name).write_text(json.dumps(rows))
        return str(tmp_path / name)

    a = write("a", [0, 1, 2, 2], [1, 1, 1, 1, 1, 1])
    b = write("b", [2, 3, 0], [1, 1, 1, 2, 2, 0])
    judged = judged_in_files(QA, [a, b])
    questions = [entry.item.row["question"] for entry in judged]
    assert questions == ["Q0?", "Q1?", "Q2?", "Q2?", "Q3?"]
    names = [set(entry.comparisons) for entry in judged]
    assert names == [{a, b}, {a}, {a, b}, {a}, {b}]
    counts = shared_counts(judged)
    assert (counts["items"], counts["annotators"]) == (5, 2)
    assert counts["items compared by two or more"] == 2
    assert judged_counts(judged) == {a: 4, b: 3}
    (pair,) = pair_agreements(SCHEMA, judged)
    assert pair == PairAgreement(a, b, 0, None, 2, 0.5)


def test_the_agreement_of_two_annotators_by_hand():
    a = doc([error(), error("Unverifiable", 8, 11)])
    b = doc([error(end=11)])
    c = doc([], none=True)
    judged = [
        JudgedItem(Item("0", ROW), {"a": a, "b": b, "c": c}),
        JudgedItem(Item("1", ROW), {"a": a}),
    ]
    first, second, third = pair_agreements(SCHEMA, judged)
    assert first == PairAgreement("a", "b", 1, pytest.approx(2 / 3), 0, None)
    assert (second.second, second.span_f1) == ("c", 0) and third.annotated == 1
    assert shared_counts(judged)["annotator pairs on annotated items"] == 3


@pytest.mark.parametrize(
    "entry, reason",
    [
        (["no object"], ": must be an object"),
        ({"order": ["0", "1", "2", "3"], "seconds": {}}, r", `order\[0\]`: must be a whole number"),
        ({"order": [0, 1, 2, 2], "seconds": {}}, ", `order`: must hold each of"),
        ({"order": [0, 1, 2, None], "seconds": {}}, r", `order\[3\]`: must be a whole number"),
        ({"seconds": {}}, ", `order`: missing"),
        ({"order": None}, ", `seconds`: missing"),
        ({"order": None, "seconds": {"comparison": "10"}}, ", `seconds.comparison`: must be a nu"),
    ],
)
def test_a_record_of_another_form_is_refused(entry, reason, tmp_path):
    path = tmp_path / "record.json"
    known = {"order": [3, 0, 2, 1], "seconds": {"annotation": 1.5, "comparison": None}}
    path.write_text(json.dumps([known]))
    assert read_record(SCHEMA, str(path), 1) == [known]
    path.write_text(json.dumps([known, entry]))
    with pytest.raises(UserError, match=f"row 1{reason}"):
        read_record(SCHEMA, str(path), 2)
