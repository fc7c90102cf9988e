"""Judgements: what is refused, and conversions from and to the other forms."""

import json
from dataclasses import replace

import pytest
from data_items import PROMPT, TEXTS, spans
from hypothesis import given
from hypothesis import strategies as st
from judged_rows import solution, span, step, steps_of

from fgrlhf.base.records import RowError
from fgrlhf.data import span_rows
from fgrlhf.data.judgements import (
    JUDGEMENTS,
    JudgedResponse,
    Judgement,
    judged_spans,
    judged_steps,
    only_steps,
    span_row,
)
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt

MARK = {"aspect": "x", "label": "y", "start": 1, "end": 3}


MISTYPED = "is not a part of a judgement; did you mean `severity"
NOTE = {"start": 0, "end": 6, "side": "source", "reason": "r"}
JUDGED = [  # as they are written, and read
    (
        MARK | {"start": 8, "end": 9, "quote": "🙂", "severity": "minor", "annotator": "r1"},
        Judgement("x", "y", 8, 9, "minor", annotator="r1"),
    ),
    ({"aspect": "x", "label": "z", **NOTE}, Judgement("x", "z", **NOTE)),
    (
        {"aspect": "all", "score": 80, "start": None, "end": None, "evidence": "e"},
        Judgement("all", score=80.0, evidence="e"),
    ),
    (
        {"aspect": "all", "label": "ok", "score": None, "side": None, "origin": "model"},
        Judgement("all", "ok", origin="model"),
    ),
]


def parse(row):
    return JUDGEMENTS.parse(Row(row, {}), 7)


def test_a_row_with_everything():
    texts = {"response": "7 and 8 🙂!", "source": "sieben"}
    row = {"id": "a", "prompt": "p", "references": ["7 und 8"], "topic": 3, **texts}
    expected = JudgedResponse(
        Prompt("a", "p", ("7 und 8",), {"topic": 3}),
        judgements=tuple(judgement for _, judgement in JUDGED),
        **texts,
    )
    assert parse(row | {"judgements": [written for written, _ in JUDGED]}) == expected
    written = JUDGEMENTS.to_row(expected)["judgements"][1]
    assert written == {"aspect": "x", "label": "z", **NOTE}


@pytest.mark.parametrize(
    "judgement, message",
    [
        ({"label": "y"}, "`judgements[0].aspect`: missing"),
        ({"aspect": "x"}, "`judgements[0]`: must have a label or a score"),
        (MARK | {"start": None}, "`judgements[0]`: start and end must both be numbers"),
        (MARK | {"end": 4}, "`judgements[0].end`: is 4, but the response has 3 characters"),
        (MARK | {"end": 1}, "`judgements[0]`: is empty: it starts at 1 and ends at 1"),
        (MARK | {"side": "target"}, "`judgements[0].side`: must be one of response, source"),
        (MARK | {"side": "source"}, "`judgements[0].side`: is `source`, and the row has no text"),
        (MARK | {"quote": "ab"}, "`judgements[0].quote`: is 'ab', but the response has 'bc' there"),
        (MARK | {"severty": "minor"}, f"`judgements[0].severty`: {MISTYPED}"),
    ],
)
def test_malformed_judgements(judgement, message):
    with pytest.raises(RowError) as error:
        parse({"response": "abc", "judgements": [judgement]})
    assert message in str(error.value)


def test_a_quote_of_the_source_is_compared_with_the_source():
    row = {"response": "abc", "source": "xyz", "judgements": [MARK | {"side": "source"}]}
    row["judgements"][0]["quote"] = "yz"
    assert parse(row).judgements[0].span == (1, 3)
    row["judgements"][0]["quote"] = "bc"
    with pytest.raises(RowError, match="but the source has 'yz' there"):
        parse(row)


@pytest.mark.parametrize(
    "values",
    [
        {"label": None},
        {"start": 1},
        {"start": 2, "end": 2},
        {"start": -1, "end": 2},
        {"side": "no"},
    ],
)
def test_impossible_judgements(values):
    with pytest.raises(ValueError):
        Judgement(**({"aspect": "x", "label": "y"} | values))


def test_a_judged_response_has_the_text_of_its_judgements():
    with pytest.raises(ValueError, match=r"\[1, 4\) is not in the response"):
        JudgedResponse(Prompt("0", ""), "abc", (Judgement("x", "y", 1, 4),))
    with pytest.raises(ValueError, match="there is no source"):
        JudgedResponse(Prompt("0", ""), "abc", (Judgement("x", "y", side="source"),))


# ---- conversions ---------------------------------------------------------------------------------


@st.composite
def span_feedback(draw):
    response = draw(TEXTS)
    prompt = draw(PROMPT)
    source = draw(st.none() | TEXTS.filter(lambda text: text != prompt.text))
    if source is not None:
        prompt.meta["source"] = source
    missing = st.fixed_dictionaries({"label": TEXTS, "doc": st.integers(0, 3)})
    prompt.meta["missing"] = draw(st.lists(missing, max_size=2))
    marks = []
    for side, text in (("response", response), ("source", source or prompt.text)):
        for start, end in draw(st.lists(spans(text), max_size=2)):
            parts = [draw(st.none() | TEXTS) for _ in range(3)]
            severity, evidence, reason = parts
            given = {"severity": severity, "evidence": evidence, "reason": reason, "side": side}
            marks.append(span(start, end, draw(TEXTS), **given))
    return judged_spans(prompt, response, marks)


@given(span_feedback())
def test_rows_of_spans_become_rows_of_judgements_and_back(feedback):
    """The rows are those of files: JSON, and read again."""
    row, losses = span_row(feedback)
    row = json.loads(json.dumps(row))
    judged = span_rows.parse(Row(row, {}), 0)
    assert (judged, losses) == (feedback, {})
    written = json.loads(json.dumps(JUDGEMENTS.to_row(judged)))
    assert span_rows.to_row(parse(written)) == (row, {})


def test_a_row_of_a_page_as_judgements():
    row = {
        "id": "7",
        "prompt": "Wie geht es?",
        "context": [["T", "S"]],
        "response": "How is it?",
        "spans": [
            {"start": 0, "end": 3, "label": "wrong", "severity": "minor", "reason": "r"},
            {"start": 4, "end": 8, "label": "omission", "side": "source", "evidence": ""},
        ],
        "missing": [{"label": "fact", "source_id": 0, "sentences": [0]}],
        "correction": "How are you?",
        "comment": "hard",
        "preferences": [1],
    }
    judged = span_rows.parse(Row(row, {}), 0)
    assert judged.judgements == (
        Judgement("span", "wrong", 0, 3, "minor", reason="r"),
        Judgement("span", "omission", 4, 8, side="source", evidence=""),
        Judgement("missing", "fact", evidence='{"source_id":0,"sentences":[0]}'),
    )
    assert judged.source == "Wie geht es?"
    written = JUDGEMENTS.to_row(judged)
    assert span_rows.to_row(parse(written)) == (row, {})


def test_rows_without_a_mark_and_rows_that_nobody_annotated():
    empty = {"id": "1", "prompt": "p", "response": "abc", "spans": []}
    judged = span_rows.parse(Row(empty, {}), 0)
    assert judged.judgements == (Judgement("span", "no error"),)
    assert span_rows.to_row(judged) == (empty, {})
    rated = {"id": "1", "prompt": "p", "response": "abc", "ratings": [{"quality": 3}]}
    judged = span_rows.parse(Row(rated, {}), 0)
    assert judged.judgements == ()
    assert span_rows.to_row(judged) == (rated, {})


NO_MARK = {"start": 0, "end": 1, "label": "x"}
OUTSIDE = "is 9, but the source has 1 characters"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"judgements": []}, "`judgements`: is a key of rows of judgements"),
        ({"source": {"a": 1}}, "`source`: must be a text"),
        ({"spans": [MARK | {"note": 1}]}, "`spans[0].aspect`: is not a key of a span"),
        ({"spans": [NO_MARK | {"side": "left"}]}, "must be one of"),
        ({"spans": [NO_MARK | {"end": 9, "side": "source"}]}, OUTSIDE),
        ({"spans": [NO_MARK | {"reason": 3}]}, "spans[0].reason"),
    ],
)
def test_rows_of_spans_that_judgements_cannot_hold(changes, message):
    row = {"prompt": "p", "response": "a" * 9, "spans": []} | changes
    with pytest.raises(RowError) as error:
        span_rows.parse(Row(row, {}), 0)
    assert message in str(error.value)


def test_what_spans_cannot_hold_is_counted():
    marks = (
        Judgement("x", "y", 0, 1, "major", annotator="r1", reason="because"),
        Judgement("x", "y", 1, 2, annotator="r2", score=1.0),
        Judgement("x", score=1.0, start=0, end=1),
        Judgement("x", "y"),
        Judgement("x", "y", 0, 1, side="source"),
    )
    judged = JudgedResponse(Prompt("0", "p"), "abc", marks, "def")
    row, losses = span_row(judged)
    assert row["spans"] == [
        {"start": 0, "end": 1, "label": "y", "severity": "major", "reason": "because"},
        {"start": 1, "end": 2, "label": "y"},
        {"start": 0, "end": 1, "label": "y", "side": "source"},
    ]
    assert row["source"] == "def"
    assert losses == {
        "annotator": 2,
        "score": 1,
        "judgements without a label": 1,
        "judgements of the whole response": 1,
        "aspects": 1,
    }


STEP = st.builds(step, TEXTS, TEXTS) | st.builds(step, TEXTS, st.none(), st.integers(-1, 1))


@given(st.builds(judged_steps, PROMPT, st.lists(STEP, min_size=1, max_size=4)))
def test_all_steps_of_a_solution_are_kept(judged):
    assert only_steps(judged) == (judged, {})


def test_steps_by_hand():
    judged = solution(step("ab", "ok"), step("c", score=0.5))
    assert judged.response == "ab\nc"
    marks = (Judgement("step", "ok", 0, 2), Judgement("step", None, 3, 4, score=0.5))
    assert judged.judgements == marks
    other = replace(judged, judgements=(*judged.judgements, Judgement("x", "y")))
    assert only_steps(other) == (judged, {"judgements that are not of a step": 1})
    assert solution() == JudgedResponse(Prompt("0", "p"), "", ())


def test_each_step_is_written_once_and_in_the_order_of_the_text():
    """Of two annotators, the one who is named first in the list counts for every step."""

    def mark(start, end, score, annotator):
        return Judgement("step", None, start, end, score=score, annotator=annotator)

    first = [mark(4, 6, 0.0, "r1"), mark(0, 3, 1.0, "r1")]
    second = [mark(0, 3, 0.0, "r2"), mark(4, 6, 0.0, "r2")]
    overlapping = mark(2, 5, 1.0, "r1")
    mixed = (first[0], second[0], overlapping, first[1], second[1])
    judged, losses = only_steps(JudgedResponse(Prompt("0", "p"), "a=1\nb=", mixed))
    assert steps_of(judged) == [step("a=1", score=1.0), step("b=", score=0.0)]
    assert losses == {
        "annotator": 2,
        "further judgements of a step": 2,
        "steps that overlap an earlier one": 1,
    }


def test_texts_outside_the_steps_are_counted():
    response = "Let me think.\nA=1\nso B=2\nThe answer is 2."
    steps = [Judgement("step", "ok", 14, 17), Judgement("step", "ok", 21, 24)]
    judged, losses = only_steps(JudgedResponse(Prompt("0", "p"), response, tuple(steps)))
    assert [judged.marked(mark) for mark in judged.spans] == ["A=1", "B=2"]
    assert losses == {"texts that are not in a step": 3}
