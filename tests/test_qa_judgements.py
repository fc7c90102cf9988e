"""qa-feedback rows as judgements, and back byte for byte."""

import json
from pathlib import Path

import pytest
from feedback_files import write_feedback_files

from fgrlhf.base.records import RowError
from fgrlhf.cli import data
from fgrlhf.data.judgements import JUDGEMENTS, JudgedResponse, Judgement
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.feedback import FeedbackRow, MissingInfo, error_span
from tasks.qa_feedback.judgements import parse, to_row

GROUNDING = '{"passage_id":1,"sentence_id":[1]}'
ROW = FeedbackRow.make(
    "Who sat?",
    [["Cats", "A cat sat."]],
    "A cat.",
    ["A dog sat 🙂 here.", "b", "c", "d"],
    [error_span("Irrelevant", 10, 11), error_span("Wrong-Grounding", 0, 5, GROUNDING)],
    [MissingInfo("Missing-Answer", 1, (0, 1))],
    "A cat sat.",
    [0, 1, 2, 0, 1, 2],
).raw


def round_trip(row, number=0):
    """The row after it was written and read as a row of judgements."""
    item = parse(Row(row, {}), number)
    written = json.loads(json.dumps(JUDGEMENTS.to_row(item)))
    again = JUDGEMENTS.parse(Row(written, {}), number)
    assert again == item
    return to_row(again)


def test_a_row_as_judgements():
    item = parse(Row(ROW, {}), 3)
    assert item.prompt.id == "3" and item.prompt.references == ("A cat.",)
    missing = '{"passage_id":1,"sentence_id":[0,1]}'
    assert item.judgements == (
        Judgement("errors", "Irrelevant", 10, 11),
        Judgement("errors", "Wrong-Grounding", 0, 5, evidence=GROUNDING),
        Judgement("missing-info", "Missing-Answer", evidence=missing),
    )


def test_an_empty_list_of_errors_is_a_judgement():
    """As on the pages. Rows of spans leave out responses that nobody judged."""
    no_errors = ROW["feedback"] | {"errors": []}
    found = parse(Row(ROW | {"feedback": no_errors}, {}), 0).judgements
    assert found[0] == Judgement("errors", "no error") and found[1].aspect == "missing-info"
    assert len(found) == 2
    del no_errors["errors"]  # nobody was asked for errors
    found = parse(Row(ROW | {"feedback": no_errors}, {}), 0).judgements
    assert [judgement.aspect for judgement in found] == ["missing-info"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"feedback": {"errors": [], "missing-info": [], "corrected-prediction": ""}},
        {"gold": ""},
        {"id": "an item"},
        {"id": "42"},
        {"id": 7},
        {"id": "²"},
        {"id": "007"},
        {"another": {"key": [1]}},
    ],
)
def test_rows_are_reproduced(change):
    row = ROW | change
    back, losses = round_trip(row)
    assert not losses
    assert back == row
    if "id" not in change:
        assert json.dumps(back, indent=2) == json.dumps(row, indent=2)


@pytest.mark.parametrize("left_out", ["feedback", "preference", "gold", "passages", "prediction 3"])
def test_rows_without_a_part(left_out):
    row = {key: value for key, value in ROW.items() if key != left_out}
    assert round_trip(row) == (row, {})


def test_severities_are_kept():
    error = ROW["feedback"]["errors"][0] | {"severity": "minor"}
    row = ROW | {"feedback": ROW["feedback"] | {"errors": [error]}}
    assert parse(Row(row, {}), 0).judgements[0].severity == "minor"
    assert round_trip(row) == (row, {})


@pytest.mark.parametrize(
    "error, message",
    [
        ({"end": 99}, "`feedback.errors[0].end`: is 99, but the response has 17 characters"),
        ({"kind": "x"}, "`feedback.errors[0].kind`: unknown key"),
        ({"error type": None}, "`feedback.errors[0].error type`: must be a text"),
    ],
)
def test_malformed_rows(error, message):
    errors = [ROW["feedback"]["errors"][0] | error]
    row = ROW | {"feedback": ROW["feedback"] | {"errors": errors}}
    with pytest.raises(RowError) as raised:
        parse(Row(row, {}), 0)
    assert message in str(raised.value)


def test_what_a_row_cannot_hold_is_counted():
    marks = (
        Judgement("errors", "Irrelevant", 0, 1, annotator="r", score=1.0),
        Judgement("errors", "Irrelevant"),
        Judgement("fluency", "bad", 0, 1),
        Judgement("missing-info", "Missing-Answer", evidence="no ids"),
    )
    judged = JudgedResponse(Prompt("0", "Who?", ("a", "b")), "abc", marks, "source")
    row, losses = to_row(judged)
    error = {"error type": "Irrelevant", "explanation": "", "start": 0, "end": 1}
    assert row["feedback"]["errors"] == [error]
    aspects = [f"judgements of the aspect {name}" for name in ("errors", "fluency", "missing-info")]
    lost = ["further references", "source texts", "annotator", "score", *aspects]
    assert losses == dict.fromkeys(lost, 1)


def test_ids_of_rows_are_reproduced_in_a_file_where_only_some_rows_have_one(tmp_path):
    rows = [{"id": "42", **ROW}, {"id": 1, **ROW}, {"id": "x9", **ROW}, ROW, {"id": "4", **ROW}]
    text = json.dumps(rows, indent=2)
    source, judged, back = (str(tmp_path / name) for name in ("a.json", "b.jsonl", "c.json"))
    Path(source).write_text(text, encoding="utf-8")
    data.main(["import", source, judged, "from=qa_feedback"])
    data.main(["export", judged, back, "to=qa_feedback"])
    assert Path(back).read_text(encoding="utf-8") == text


def test_files_of_the_mini_world(tmp_path):
    write_feedback_files(tmp_path)
    for row in json.loads((tmp_path / "train_feedback.json").read_text(encoding="utf-8")):
        back, losses = round_trip(row)
        assert json.dumps(back) == json.dumps(row) and not losses


@pytest.mark.parametrize("split", ["train", "dev"])
def test_published_files_are_reproduced(qa_feedback, split):
    text = (qa_feedback / f"{split}_feedback.json").read_text(encoding="utf-8")
    rows = [round_trip(row, number)[0] for number, row in enumerate(json.loads(text))]
    assert json.dumps(rows, indent=2) == text
