"""Exporters: import(export(x)) = x where the format can hold it; what it cannot hold is counted."""

import json
from dataclasses import replace

import pytest
from data_items import PROMPT, TEXTS, judged_responses, spans
from hypothesis import given
from hypothesis import strategies as st
from judged_rows import solution, step

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.exporters import EXPORTERS
from fgrlhf.data.formats import COMPARISONS, SPANS, STEPS
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.judgements import JUDGEMENTS, JudgedResponse, Judgement
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt

PLAIN_PROMPTS = PROMPT.map(lambda prompt: replace(prompt, references=()))


def sorted_judgements(judged):
    """Without the order of different annotators, which the tools do not keep."""
    return replace(judged, judgements=tuple(sorted(judged.judgements, key=repr)))


def again(tmp_path_factory, name, judged):
    """The judged response after export and import, and what the export lost."""
    path = tmp_path_factory.mktemp("export") / "rows.json"
    rows, losses = EXPORTERS[name].write([judged])
    write_json(path, rows)
    (item,), report = import_items(path, name)
    assert not report.problems and not report.losses
    return item, losses


def named(judged):
    """The same with names that have no blanks around them, which an import removes."""
    judgements = []
    for item in judged.judgements:
        names = {part: getattr(item, part) for part in ("aspect", "label", "severity")}
        stripped = {part: name.strip() for part, name in names.items() if name is not None}
        judgements.append(replace(item, **stripped))
    return replace(judged, judgements=tuple(judgements))


def held_by_label_studio(judged):
    """The same without what Label Studio cannot hold."""
    judgements = []
    for item in judged.judgements:
        if item.annotator is not None and item.origin is not None:
            item = replace(item, origin="prediction")
        judgements.append(item)
    prompt = replace(judged.prompt, references=())
    return replace(judged, prompt=prompt, judgements=tuple(judgements))


def test_a_task_of_label_studio():
    marks = (
        Judgement("fluency", "bad", 2, 3, "minor", annotator="ann", reason="why"),
        Judgement("fluency", "odd", 0, 1, annotator="ann", origin="model 3"),
        Judgement("overall", score=4.0, origin="m"),
    )
    judged = JudgedResponse(Prompt("7", "p", ("r",), {"n": 1}), "a🙂bc", marks)
    (task,), losses = EXPORTERS["label_studio"].write([judged])
    assert task["data"] == {"id": "7", "response": "a🙂bc", "prompt": "p", "n": 1}
    (annotation,) = task["annotations"]
    assert annotation["completed_by"] == {"email": "ann"}
    first, severity, reason, second = annotation["result"]
    shared = {"id": "r0", "to_name": "response", "from_name": "fluency", "type": "labels"}
    assert first == shared | {"value": {"start": 2, "end": 3, "text": "b", "labels": ["bad"]}}
    assert (severity["from_name"], severity["value"]["choices"]) == ("severity", ["minor"])
    assert (reason["type"], reason["value"]["text"]) == ("textarea", ["why"])
    assert second["origin"] == "prediction"
    (prediction,) = task["predictions"]
    assert prediction["model_version"] == "m"
    assert losses == {"references": 1, "names of origins": 1}


@st.composite
def held_by_argilla(draw):
    """Spans and labels of several annotators and one model, and one score of each annotator."""
    response = draw(TEXTS)
    aspects = st.sampled_from(["fluency", "truth"])
    judgements = []
    for annotator in draw(st.lists(st.none() | TEXTS, max_size=3, unique=True)):
        origin = "model" if annotator is None else None
        parts = {"annotator": annotator, "origin": origin}
        for start, end in draw(st.lists(spans(response), max_size=3)):
            judgements.append(Judgement(draw(aspects), draw(TEXTS), start, end, **parts))
        judgements.append(Judgement(draw(aspects), draw(TEXTS), **parts))
        judgements.append(Judgement("stars", score=float(draw(st.integers(0, 5))), **parts))
    return JudgedResponse(draw(PLAIN_PROMPTS), response, tuple(judgements), draw(st.none() | TEXTS))


HELD = {
    "label_studio": judged_responses().map(named).map(held_by_label_studio),
    "argilla": held_by_argilla().map(named),
}


@pytest.mark.parametrize("name", HELD)
def test_a_tool_and_back(tmp_path_factory, name):
    @given(HELD[name])
    def check(judged):
        item, losses = again(tmp_path_factory, name, judged)
        assert sorted_judgements(item) == sorted_judgements(judged)
        assert not losses

    check()


DIALOG = "\n\nHuman: Hi.\n\nAssistant: Hello.\n\nHuman: Why?\n\nAssistant:"


@pytest.mark.parametrize("name", ["label_studio", "argilla"])
def test_a_prompt_that_is_a_dialog_comes_back(tmp_path_factory, name):
    row = {"id": "0", "prompt": DIALOG, "response": "Because.", "judgements": []}
    judged = JUDGEMENTS.parse(Row(row, {}), 0)
    item, losses = again(tmp_path_factory, name, judged)
    assert item == judged and not losses
    assert JUDGEMENTS.to_row(item)["prompt"] == DIALOG
    twice = [{"role": "user", "content": "Hi."}] * 2  # read again, they are one message
    _, losses = EXPORTERS[name].write([JUDGEMENTS.parse(Row(row | {"prompt": twice}, {}), 0)])
    assert losses == {"the roles of messages": 2}


def test_argilla_holds_marks_of_the_source(tmp_path_factory):
    mark = Judgement("truth", "omitted", 0, 3, side="source", annotator="a")
    judged = JudgedResponse(Prompt("0", "p"), "abc", (mark,), "source")
    assert again(tmp_path_factory, "argilla", judged) == (judged, {})


def test_offsets_of_argilla_are_utf16_code_units(tmp_path_factory):
    marks = (
        Judgement("truth", "odd", 2, 3, annotator="a"),
        Judgement("truth", "odd", 1, 3, origin="m"),
        Judgement("truth", "odd", 2, 3, side="source", annotator="a"),
    )
    judged = JudgedResponse(Prompt("0", "p"), "a🙂b", marks, "😀😀c")
    (record,), _ = EXPORTERS["argilla"].write([judged])
    (answer,) = record["responses"]["truth"]
    assert answer["value"] == [{"label": "odd", "start": 3, "end": 4}]
    assert record["suggestions"]["truth"]["value"] == [{"label": "odd", "start": 1, "end": 4}]
    (answer,) = record["responses"]["truth (source)"]
    assert answer["value"] == [{"label": "odd", "start": 4, "end": 5}]
    item, losses = again(tmp_path_factory, "argilla", judged)
    assert sorted_judgements(item) == sorted_judgements(judged) and not losses


def test_what_argilla_cannot_hold_is_counted():
    judged = JudgedResponse(
        Prompt("0", "p", ("r",)),
        "abc",
        (
            Judgement("x", "y", 0, 1, "minor", annotator="a", reason="r", evidence="e", score=1.0),
            Judgement("x", score=1.0, start=0, end=1, annotator="a"),
            Judgement("x", score=2.0, annotator="a"),
            Judgement("x", "y", 0, 1, annotator="a", origin="m"),
            Judgement("x", "y", 0, 1, origin="m"),
            Judgement("x", "y", 0, 1, origin="other"),
        ),
    )
    (record,), losses = EXPORTERS["argilla"].write([judged])
    assert losses == {
        **{"references": 1, "severity": 1, "reason": 1, "evidence": 1, "origin": 1},
        "scores of labelled judgements": 1,
        "spans of scores": 1,
        "further scores of one user": 1,
        "suggestions of further agents": 1,
    }
    (answer,) = record["responses"]["x (score)"]
    assert answer == {"value": 1, "user_id": "a"} and isinstance(answer["value"], int)


@given(judged_responses())
def test_no_export_loses_anything_in_silence(judged):
    """If nothing is reported as lost, the number of judgements is unchanged."""
    rows, losses = EXPORTERS["spans"].write([judged])
    unplaced = losses["responses whose only errors have no place"]
    assert len(rows) + losses["responses without a judgement"] + unplaced == 1
    feedback = [SPANS.parse(Row(json.loads(json.dumps(row)), {}), 0) for row in rows]
    spans_left = sum(len(item.spans) for item in feedback)
    dropped = sum(count for what, count in losses.items() if what.startswith("judgements"))
    assert unplaced or spans_left + dropped == len(judged.judgements)
    (record,), losses = EXPORTERS["argilla"].write([judged])
    held = [answer for users in record["responses"].values() for answer in users]
    held += list(record["suggestions"].values())
    sizes = [len(a["value"]) if isinstance(a["value"], list) else 1 for a in held]
    further = losses["further scores of one user"] + losses["suggestions of further agents"]
    assert sum(sizes) + further == len(judged.judgements)


def test_spans_invent_no_verdict():
    """A row without spans reads as `no error`, so a response that nobody judged has no row."""

    def write(*judgements):
        return EXPORTERS["spans"].write([JudgedResponse(Prompt("0", "p"), "abc", judgements)])

    assert write() == ([], {"responses without a judgement": 1})
    rows, losses = write(Judgement("x", "wrong"))
    assert rows[0]["spans"] == []
    assert losses["responses left without a span, though not judged `no error`"] == 1
    for judgements in ([Judgement("x", "no error")], [Judgement("x", "wrong", 0, 1)]):
        rows, losses = write(*judgements)
        assert len(rows) == 1 and not any(what.startswith("responses") for what in losses)


def test_steps_for_trl():
    judged = solution(step("a", score=1.0), step("b", score=-1.0))
    extra = replace(judged, judgements=(*judged.judgements, Judgement("x", "y")))
    (row,), losses = EXPORTERS["trl_stepwise"].write([extra])
    assert row == {"id": "0", "prompt": "p", "completions": ["a", "b"], "labels": [True, False]}
    assert losses == {"judgements that are not of a step": 1, "exact scores of steps": 1}
    assert STEPS.parse(Row(row, {}), 0) == solution(step("a", score=1.0), step("b", score=0.0))
    no_steps = replace(judged, judgements=(Judgement("x", "y"),))
    rows, losses = EXPORTERS["trl_stepwise"].write([no_steps])
    assert rows == []
    assert losses == {"judgements that are not of a step": 1, "solutions without a step": 1}
    labelled = solution(step("a", "ok"))
    with pytest.raises(UserError, match="no score"):
        EXPORTERS["trl_stepwise"].write([labelled])


def test_preferences_for_trl():
    answers = (Answer("a", ((0, 1),)), Answer("b"))
    items = [
        Comparison(Prompt("0", "p"), answers, ((1, 0),), (2.0,)),
        Comparison(Prompt("1", "p"), (Answer("a"), Answer("b")), ()),
    ]
    rows, losses = EXPORTERS["trl_preference"].write(items)
    assert rows == [{"id": "0/0", "prompt": "p", "chosen": "b", "rejected": "a", "margin": 2.0}]
    assert losses == {"comparisons without a decided pair": 1, "marks": 1}
    three = Comparison(Prompt("2", "p"), (Answer("a"), Answer("b"), Answer("c")), ((2, 0),))
    assert EXPORTERS["trl_preference"].write([three])[1] == {"responses in no decided pair": 1}


def test_preferences_about_dialogs_for_trl():
    """Texts as long as they hold the messages, else conversations in all rows."""
    kept = [{"prompt": "p", "chosen": "a", "rejected": "b"}]
    kept += [{"prompt": DIALOG, "chosen": "a", "rejected": ""}]
    twice = [{"role": "user", "content": "Hi."}] * 2  # in a text, they would be one message
    conversation = {"prompt": twice, "chosen": "a", "rejected": "b"}
    for sources, kind in ((kept, str), ([*kept, conversation], list)):
        items = [COMPARISONS.parse(Row(row, {}), i) for i, row in enumerate(sources)]
        rows, losses = EXPORTERS["trl_preference"].write(items)
        assert not losses and len(rows) == len(sources)
        for row, item in zip(rows, items):
            assert {type(row[key]) for key in ("prompt", "chosen", "rejected")} == {kind}
            again = COMPARISONS.parse(Row(row, {}), 0)
            assert again.prompt.text == item.prompt.text
            assert again.prompt.messages == item.prompt.messages
            assert [answer.text for answer in again.answers] == [
                answer.text for answer in item.answers
            ]
