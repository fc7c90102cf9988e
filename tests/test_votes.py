"""Judgements of several annotators of one response become one set of spans."""

import json

import pytest

from fgrlhf.base.errors import UserError
from fgrlhf.cli import data
from fgrlhf.data.judgements import NO_ERROR, JudgedResponse, Judgement
from fgrlhf.data.votes import combined
from fgrlhf.text_types import Prompt

TEXT = "One two three."


def judged(*judgements):
    return JudgedResponse(Prompt("0", "a"), TEXT, judgements, source="Eins zwei.")


def mark(annotator, start, end, label="wrong", **parts):
    return Judgement("span", label, start, end, annotator=annotator, **parts)


def right(annotator):
    return Judgement("span", NO_ERROR, annotator=annotator)


def spans(items, rule="majority"):
    """(side, start, end, label) of every response's marks, and the counts."""
    kept, counts = combined(items, rule)
    found = []
    for item in kept:
        marks = [judgement for judgement in item.judgements if judgement.span is not None]
        found.append([(m.side, m.start, m.end, m.label) for m in marks])
    return found, +counts


def test_annotators_who_found_no_error_vote_too():
    one_of_three = judged(mark("r1", 0, 3), right("r2"), right("r3"))
    found, counts = spans([one_of_three])
    assert found == [[]]
    assert counts == {
        "responses of several annotators, 2 of 3 votes needed": 1,
        "marks without enough votes, left out": 1,
    }
    assert combined([one_of_three], "majority")[0][0].judgements == (Judgement("span", NO_ERROR),)
    assert spans([one_of_three], 1)[0] == [[("response", 0, 3, "wrong")]]
    assert spans([one_of_three], "any")[0] == [[("response", 0, 3, "wrong")]]


def test_characters_with_enough_votes_are_marked():
    item = judged(mark("r1", 0, 7), mark("r2", 4, 13), mark("r3", 5, 6, "vague"))
    assert spans([item])[0] == [[("response", 4, 7, "wrong")]]
    # all three marked 5; their labels differ, so the one with most votes counts
    assert spans([item], 3)[0] == [[("response", 5, 6, "wrong")]]
    assert spans([item], 1)[0] == [[("response", 0, 13, "wrong"), ("response", 5, 6, "vague")]]
    # of fewer annotators than votes, all are needed
    assert spans([judged(mark("r1", 0, 7), mark("r2", 4, 13))], 3)[0] == [
        [("response", 4, 7, "wrong")]
    ]


def test_a_span_keeps_the_parts_of_its_first_mark():
    first = mark("r1", 0, 7, severity="major", reason="because")
    (item,), _ = combined([judged(first, mark("r2", 4, 7, severity="minor"))], "majority")
    assert item.judgements == (
        Judgement("span", "wrong", 4, 7, severity="major", reason="because"),
    )


def test_sides_and_liked_spans_are_voted_on_alone():
    liked = [Judgement("liked", "good", 0, 3, annotator=name) for name in ("r1", "r2")]
    item = judged(*liked, mark("r1", 0, 4, side="source"), mark("r2", 0, 3))
    assert spans([item])[0] == [[("response", 0, 3, "good")]]


def test_a_single_annotator_is_kept_as_is():
    one = judged(mark("r1", 0, 3, origin="model"), mark("r1", 1, 5, "vague"))
    assert combined([one], "majority") == ([one], {})
    rated = judged(mark("r1", 0, 3), Judgement("overall", score=2, annotator="r2"))
    assert combined([rated], "majority") == ([rated], {})  # r2 never looked for errors


def test_suggestions_that_no_annotator_made_are_no_votes():
    suggested = mark(None, 4, 7, origin="model")
    found, counts = spans([judged(mark("r1", 0, 3), suggested), judged(suggested)])
    assert found == [[("response", 0, 3, "wrong")], [("response", 4, 7, "wrong")]]
    assert counts == {"judgements that model suggested and no annotator made": 1}


def test_one_annotator_by_name():
    items = [judged(mark("r1", 0, 3), right("r2")), judged(right("r2"))]
    found, counts = spans(items, "r1")
    assert found == [[("response", 0, 3, "wrong")]]
    assert counts == {"responses left out, not judged by 'r1'": 1}
    with pytest.raises(UserError, match="no judgement is by 'r3'"):
        combined(items, "r3")


def test_export_combines_annotators(tmp_path, capsys):
    judgements = [
        {"aspect": "span", "label": "wrong", "start": 0, "end": 1, "annotator": "r1"},
        {"aspect": "span", "label": "no error", "start": None, "end": None, "annotator": "r2"},
        {"aspect": "span", "label": "no error", "start": None, "end": None, "annotator": "r3"},
    ]
    source = tmp_path / "judgements.jsonl"
    source.write_text(json.dumps({"response": "A b c.", "judgements": judgements}))
    out = tmp_path / "spans.jsonl"
    data.main(["export", str(source), str(out), "to=spans"])
    assert json.loads(out.read_text())["spans"] == []
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "  responses of several annotators, 2 of 3 votes needed: 1",
        "  marks without enough votes, left out: 1",
    ]
    data.main(["export", str(source), str(out), "to=spans", "annotators=1"])
    assert json.loads(out.read_text())["spans"] == [{"start": 0, "end": 1, "label": "wrong"}]
    with pytest.raises(UserError, match="is for to=spans and tasks"):
        data.main(["export", str(source), str(out), "to=argilla", "annotators=any"])
