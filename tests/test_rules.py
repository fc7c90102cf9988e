"""The rules of an annotation and of a comparison, each with a case that violates only that rule."""

import copy
import json

import pytest
from page_helpers import QA, TOXICITY

from fgrlhf.segmentation import sentences
from interface_html.items import read_items
from interface_html.rules import annotation_problems, comparison_problems, find_cycle, is_weak_order

SCHEMA = QA.schema
TEXT = "The cat sat on the mat. It was 😀 red. It was red."
ROW = {
    "question": "Who sat?",
    "passages": [["Cat", "A cat sat.", "It was blue."], ["Mat", "Flat."]],
    "gold": "A cat.",
    **{f"prediction {i}": TEXT for i in range(1, 5)},
}
PAIRS = SCHEMA.pairs


def error(kind="Irrelevant", start=0, end=7, explanation="", **more) -> dict:
    return {"error type": kind, "explanation": explanation, "start": start, "end": end, **more}


def missing(kind="Missing-Answer", passage=1, ids=(1,)) -> dict:
    return {"error type": kind, "passage_id": passage, "sentence_id": list(ids)}


def doc(errors=(), infos=(), corrected="Mended.", none=False, **more) -> dict:
    doc = {"errors": list(errors), "missing-info": list(infos), "corrected-prediction": corrected}
    return {**doc, "no-error": none, **more}


def fields(annotation, schema=SCHEMA, row=ROW) -> list[str]:
    return [
        field.removeprefix("feedback.") for field, _ in annotation_problems(schema, row, annotation)
    ]


WRONG = json.dumps({"passage_id": 1, "sentence_id": [2]}, separators=(",", ":"))


def test_valid_annotations_pass():
    assert fields(doc([], [], TEXT, none=True)) == []
    assert fields(doc([error(quote="The cat")])) == []
    wrong = error("Wrong-Grounding", 31, 37, WRONG, quote="😀 red.")
    assert fields(doc([wrong], [missing(ids=(0, 2))])) == []
    assert fields(doc([error("Redundant", 38, 49, "It was "), error(start=8, end=11)])) == []


def wrong(explanation):
    return doc([error("Wrong-Grounding", explanation=explanation)])


EXPLANATION = "errors[0].explanation"


@pytest.mark.parametrize(
    "annotation, expected",
    [
        (doc([error(), error(start=4, end=11)]), "errors[1]"),
        (doc([error(end=6)]), "errors[0].end"),
        (doc([error(start=1)]), "errors[0].start"),
        (doc([error(start=7, end=7)]), "errors[0].end"),
        (doc([error(end=50)]), "errors[0].end"),
        (doc([error(start=-1)]), "errors[0].start"),
        (doc([error(start=True)]), "errors[0].start"),
        (doc([error(kind="Wrong")]), "errors[0].error type"),
        (doc([error(quote="The dog")]), "errors[0].quote"),
        (doc([error(explanation="why")]), "errors[0].explanation"),
        (doc([error(colour="red")]), "errors[0].colour"),
        (doc([error("Redundant", 38, 49, "")]), EXPLANATION),
        (doc([error("Redundant", 24, 30, "red.")]), EXPLANATION),
        (wrong(""), EXPLANATION),
        (wrong("{" * 5000), EXPLANATION),
        (wrong('{"passage_id": 1, "sentence_id": [2]}'), EXPLANATION),
        (wrong(WRONG.replace("1", "3")), f"{EXPLANATION}.passage_id"),
        (wrong(WRONG.replace("[2]", "[3]")), f"{EXPLANATION}.sentence_id[0]"),
        (wrong(WRONG.replace("[2]", "[]")), f"{EXPLANATION}.sentence_id"),
        (doc([], [missing(ids=())]), "missing-info[0].sentence_id"),
        (doc([], [missing(ids=(1, 1))]), "missing-info[0].sentence_id"),
        (doc([], [missing(passage=0)]), "missing-info[0].passage_id"),
        (doc([], [missing(ids=(1, 2)), missing(ids=(2, 1))]), "missing-info[1]"),
        (doc([], [missing("Irrelevant")]), "missing-info[0].error type"),
        (doc([error()], none=True, corrected=TEXT), "no-error"),
        (doc([], none=True), "corrected-prediction"),
        (doc([], corrected=TEXT), "no-error"),
        (doc([error()], corrected=TEXT), "corrected-prediction"),
        (doc([error()], corrected="\ud83d"), "corrected-prediction"),
        (doc([error()], extra=1), "extra"),
    ],
)
def test_every_rule_has_its_field(annotation, expected):
    assert fields(annotation) == [expected]


def test_other_than_objects_is_told():
    for value in (
        None,
        [],
        "x",
        {"errors": 1},
        {"errors": [3], "missing-info": [None], "corrected-prediction": "", "no-error": False},
    ):
        assert annotation_problems(SCHEMA, ROW, value)


def test_real_annotations_keep_the_rules(qa_feedback):
    for split in ("train", "dev"):
        for item in read_items(QA, qa_feedback / f"{split}_feedback.json"):
            said = item.row["feedback"]
            none = not said["errors"] and not said["missing-info"]
            assert annotation_problems(SCHEMA, item.row, {**said, "no-error": none}) == []
            shown = {"preference": item.row["preference"], "order": [3, 1, 0, 2]}
            assert comparison_problems(SCHEMA, shown) == []


def test_sentences_are_marked_whole():
    schema = TOXICITY.schema
    row = {"prompt": "", "generation": 'Hi. "Go away!" he said'}
    found = [row["generation"][a:b] for a, b in sentences(row["generation"])]
    assert found == ["Hi.", '"Go away!" he said']
    good = doc([error("Insult", 4, 22)], corrected="")
    assert fields(good, schema, row) == []
    part = copy.deepcopy(good)
    part["errors"][0]["end"] = 7
    assert fields(part, schema, row) == ["errors[0].end"]
    assert fields(doc([error("Insult", 4, 22)], corrected="x"), schema, row) == [
        "corrected-prediction"
    ]


# ---- comparisons ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "preference, order, expected",
    [
        ([1, 1, 1, 1, 1, 1], [0, 1, 2, 3], []),
        ([0, 0, 0, 0, 0, 0], [3, 2, 1, 0], []),
        ([1, 2, 0, 1, 0, 0], [0, 1, 2, 3], ["preference"]),  # 1 > 2 > 3 > 1
        ([1, 1, 1, 1, 1], [0, 1, 2, 3], ["preference"]),
        ([1, 1, 1, 1, 1, 3], [0, 1, 2, 3], ["preference[5]"]),
        ([1, 1, 1, 1, 1, None], [0, 1, 2, 3], ["preference[5]"]),
        ([1, 1, 1, 1, 1, True], [0, 1, 2, 3], ["preference[5]"]),
        ([1, 1, 1, 1, 1, 1], [0, 1, 2, 2], ["order"]),
    ],
)
def test_comparisons(preference, order, expected):
    problems = comparison_problems(SCHEMA, {"preference": preference, "order": order})
    assert [field for field, _ in problems] == expected


def test_circles_and_rankings():
    assert find_cycle(4, PAIRS, [1, 2, 0, 1, 0, 0]) == [0, 1, 2]
    assert find_cycle(4, PAIRS, [1, 1, 2, 1, 1, 1]) == [0, 1, 3]
    assert is_weak_order(4, PAIRS, [0, 1, 1, 1, 1, 0])
    assert not is_weak_order(4, PAIRS, [0, 1, 1, 0, 1, 1])  # 1 = 2, 2 = 3, yet 1 > 3
