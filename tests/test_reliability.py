"""Reliability of annotators: figures by hand, gold and majority, weighted votes in the export."""

import json
from math import log

import pytest
from test_database import Clock
from test_liked_spans import submission as submitted
from test_rules import ROW, doc, error, missing

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from interface_html import export
from interface_html.assignments import Receipt
from interface_html.database import Database
from interface_html.format import Item
from interface_html.reliability import (
    GivenLabel,
    ReliabilitySettings,
    answers_to_others,
    balanced_accuracy,
    leading_label,
    reliability_of,
    vote_weight,
    write_report,
)
from interface_html.rules import character_labels
from interface_html.stored import Submission
from interface_html.tasks import feedback_of
from interface_html.votes import judged_items, majority, most_agreed_labels
from interface_html.weighting import Weights, reliable_submissions

QA = feedback_of("qa_feedback")
RIGHT = doc([error(end=23)])  # the first of three sentences


def answers(*pairs, kind="k"):
    return [GivenLabel(kind, given, right) for given, right in pairs]


def test_balanced_accuracy_by_hand():
    always_right = answers(*[("O", "O")] * 8, *[("E", "E")] * 2)
    # n = 2^2 / (1/8 + 1/2) = 6.4
    assert balanced_accuracy(always_right, 2) == pytest.approx((6.4 + 1) / (6.4 + 2))
    three = answers((1, 1), (2, 1), (0, 0))
    # r = (1/2 + 1) / 2, n = 2^2 / (1/2 + 1)
    assert balanced_accuracy(three, 3) == pytest.approx((8 / 3 * 0.75 + 1) / (8 / 3 + 3))


@pytest.mark.parametrize("rare", [1, 2, 50])
def test_who_never_marks_an_error_is_at_chance(rare):
    never_marks = answers(*[("O", "O")] * 80, *[("O", "E")] * rare)
    assert balanced_accuracy(never_marks, 2) == pytest.approx(0.5)


def test_the_weight_is_the_log_odds_and_chance_weighs_nothing():
    assert vote_weight(0.9, 2) == pytest.approx(log(9), abs=1e-6)
    assert vote_weight(0.9, 3) == pytest.approx(log(18), abs=1e-6)
    for classes in (2, 3, 5):
        assert vote_weight(1 / classes, classes) == 0
    assert vote_weight(0.1, 2) == 0  # worse than chance


def test_an_undefined_weight_says_why():
    nothing = reliability_of([], {}, 0, [], "no item")
    assert (nothing.weight, nothing.accuracy, nothing.undefined) == (None, None, "no item")
    one_class = reliability_of(answers(("O", "O"), ("E", "O")), {"k": 2}, 1, [], "no item")
    assert one_class.accuracy == 0.5 and one_class.weight is None
    assert "all right labels are the same (O)" in one_class.undefined


def test_kinds_count_equally_and_repeats_give_the_consistency():
    given = answers(("O", "O"), ("E", "E"))
    given += answers((1, 1), (2, 2), (0, 0), (1, 0), kind="l")
    both = reliability_of(given, {"k": 2, "l": 3}, 2, [True, True, False, True], "")
    first = balanced_accuracy(given[:2], 2)
    second = balanced_accuracy(given[2:], 3)
    assert both.balanced_accuracy == pytest.approx((first + second) / 2)
    expected = (vote_weight(first, 2) + vote_weight(second, 3)) / 2
    assert both.weight == pytest.approx(expected)
    assert (both.labels, both.accuracy) == (6, pytest.approx(5 / 6))
    assert (both.repeated_labels, both.consistency) == (4, 0.75)


def test_others_decide_only_if_a_label_leads():
    assert leading_label(["a", "b", "a"]) == "a"
    assert leading_label(["a", "b"]) is None
    docs = {
        "a": {"preference": [1, 1, 1, 1, 1, 1]},
        "b": {"preference": [1, 2, 1, 1, 1, 1]},
        "c": {"preference": [1, 2, 2, 1, 1, 1]},
    }
    found = answers_to_others(QA, Item("0", ROW), "comparison", docs)
    assert [(answer.given, answer.right) for answer in found["a"]] == [
        (1, 1),
        (1, 2),  # the third pair is left out: b and c disagree
        (1, 1),
        (1, 1),
        (1, 1),
    ]


GOLD_KEYS = ("feedback", "preference")


@pytest.fixture
def study(tmp_path):
    """Three items; anna marks as RIGHT, ben marks nothing, cleo marks what is right."""
    database = Database(tmp_path / "f.sqlite", "qa_feedback", per_item=3, clock=Clock())
    rows = [{**ROW, "question": f"Question {i}?"} for i in range(3)]
    database.add_items([Item(str(i), row) for i, row in enumerate(rows)])
    blank = doc(corrected=ROW["prediction 1"], none=True)
    for name, annotation, preference in (
        ("anna", RIGHT, [1, 1, 1, 1, 1, 1]),
        ("ben", blank, [2, 2, 2, 2, 2, 0]),
        ("cleo", blank, [2, 2, 2, 2, 1, 1]),
    ):
        for page, content in (
            ("annotation", annotation),
            ("comparison", {"preference": preference}),
        ):
            while given := database.next(name, page, 4):
                uuid = f"{name}-{page}-{given.item.id}"
                database.submit(given, uuid, content, Receipt(1, "1"))
    database.close()
    feedback = {key: value for key, value in RIGHT.items() if key != "no-error"}
    gold = [{**rows[0], "feedback": feedback, "preference": [1, 1, 1, 1, 1, 2]}]
    write_json(tmp_path / "gold.json", gold)
    return tmp_path


def measure(study, **changes):
    values = {"task": "qa_feedback", "db": str(study / "f.sqlite"), "out": str(study / "r.json")}
    return write_report(ReliabilitySettings(**values | changes))


def exported(study, **changes):
    values = {"task": "qa_feedback", "db": str(study / "f.sqlite"), "out": str(study / "o.json")}
    export.export(export.FeedbackExportSettings(**values | {"policy": "majority"} | changes))
    return json.loads((study / "o.json").read_text())


def test_gold_gives_weights_that_decide_the_export(study, capsys):
    result = measure(study, gold=str(study / "gold.json"))
    anna = result.annotators["anna"]
    assert (anna["annotation"].items, anna["annotation"].accuracy) == (1, 1.0)
    assert anna["annotation"].weight > 0.5
    assert result.annotators["ben"]["annotation"].weight == 0
    assert anna["comparison"].accuracy == pytest.approx(5 / 6)
    assert "anna" in capsys.readouterr().out
    plain = exported(study)
    assert [row["feedback"]["errors"] for row in plain] == [[], [], []]
    assert [row["preference"] for row in plain] == [[2, 2, 2, 2, 1, 1]] * 3
    weighted = exported(study, weights=str(study / "r.json"))
    assert [len(row["feedback"]["errors"]) for row in weighted] == [1, 1, 1]


def test_gold_of_an_item_may_be_in_two_rows(study):
    (gold,) = json.loads((study / "gold.json").read_text())
    rows = [{key: value for key, value in gold.items() if key != name} for name in GOLD_KEYS]
    write_json(study / "halves.json", rows)
    whole = measure(study, gold=str(study / "gold.json"))
    assert measure(study, gold=str(study / "halves.json")).annotators == whole.annotators


def test_unreliable_annotators_can_be_left_out(study, capsys):
    measure(study, gold=str(study / "gold.json"))
    anna_only = exported(
        study, weights=str(study / "r.json"), least_weight=0.1, policy="all", pages="annotation"
    )
    assert [len(row["feedback"]["errors"]) for row in anna_only].count(1) == 3
    text = capsys.readouterr().out
    assert "left out" in text and "with a weight below 0.1: ben, cleo" in text
    with pytest.raises(UserError, match="with a weight below 99.0: .*Nothing was written"):
        exported(study, weights=str(study / "r.json"), least_weight=99)


def test_without_gold_the_majority_of_the_others_is_right(study):
    result = measure(study)
    assert result.right == "majority of the others"
    assert result.annotators["anna"]["comparison"].accuracy == pytest.approx(0)
    annotation = result.annotators["ben"]["annotation"]
    assert annotation.items == 3 and "all right labels are the same" in annotation.undefined
    cleo = result.annotators["cleo"]["comparison"]
    assert cleo.items == 0 and "no judged item do two other annotators agree" in cleo.undefined


def test_mistakes_are_told(study):
    rows = [{**ROW, "question": "Another?", "preference": [1] * 6}]
    write_json(study / "other.json", rows)
    with pytest.raises(UserError, match="1 judged row, none with the texts of an item"):
        measure(study, gold=str(study / "other.json"))
    with pytest.raises(UserError, match="least_weight=... needs the weights"):
        exported(study, least_weight=1.0)
    measure(study, gold=str(study / "gold.json"))
    with pytest.raises(UserError, match="no effect with policy=latest"):
        exported(study, weights=str(study / "r.json"), policy="latest")
    report = json.loads((study / "r.json").read_text())
    write_json(study / "r.json", {**report, "task": "detoxification"})
    with pytest.raises(UserError, match="of the task detoxification, not of qa_feedback"):
        exported(study, weights=str(study / "r.json"))


# ---- weighted votes ------------------------------------------------------------------------------


def test_weighted_majority_by_hand():
    votes = [[1, 1], [2, 2], [2, 0]]
    assert majority(votes) == [2, 0]
    assert majority(votes, [3.0, 1.0, 1.0]) == [1, 1]
    assert majority(votes, [2.0, 1.0, 1.0]) == [0, 1]
    assert majority(votes, [0.0, 0.0, 0.0]) == [2, 0]  # nobody is better than chance


def test_weighted_annotation_by_hand():
    text = "abcd efgh"
    none, first, second = doc(), doc([error(start=0, end=4)]), doc([error(start=5, end=9)])
    labels = [character_labels(text, document) for document in (none, first, second)]
    # `none` shares 5 + 5 characters with the others, which share 5 + 1
    assert most_agreed_labels(labels) == 0
    assert most_agreed_labels(labels, [1, 9, 1]) == 1
    assert most_agreed_labels(labels, [1, 1, 9]) == 2


def test_of_equal_marks_missing_information_decides():
    docs = {"anna": doc([], [missing()]), "ben": doc(), "cleo": doc()}
    given = [submitted("0", name, value) for name, value in docs.items()]
    (item,), _ = judged_items(QA.schema, [Item("0", ROW)], given, "majority", ["annotation"])
    assert item.feedback == docs["ben"]
    weights = Weights({"annotation": {"anna": 3.0, "ben": 1.0, "cleo": 1.0}})
    (item,), _ = judged_items(
        QA.schema, [Item("0", ROW)], given, "majority", ["annotation"], weights
    )
    assert item.feedback == docs["anna"]


@pytest.mark.parametrize("weight", [0.1, 1.7, 1e-9, 0.0])
def test_equal_weights_change_nothing(weight):
    text = "ab cd ef gh ij kl mn"
    labels = []
    for number in range(7):
        spans = [error(start=3 * i, end=3 * i + 2) for i in range(7) if (number * 5 + i) % 3 == 0]
        labels.append(character_labels(text, doc(spans)))
    for count in range(1, 8):
        equal = [weight] * count
        some = labels[:count]
        assert most_agreed_labels(some, equal) == most_agreed_labels(some)
        votes = [[(i * j) % 3 for j in range(6)] for i in range(count)]
        assert majority(votes, equal) == majority(votes)


def test_only_a_page_with_weights_has_annotators_without_one():
    def submission(page: str, annotator: str) -> Submission:
        return Submission("0", annotator, page, {}, [], 1.0, "1", 0.0, 1, None, None)

    submissions = [
        submission("annotation", "anna"),
        submission("annotation", "ben"),
        submission("rating", "cleo"),
    ]
    weights = Weights({"annotation": {"anna": 0.5}, "comparison": {}})
    kept, text = reliable_submissions(submissions, weights, 0.1)
    assert kept == submissions
    assert text == "; without a weight, counted as the mean of the others: ben"
