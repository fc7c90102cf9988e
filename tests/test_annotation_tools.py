"""Files of the form that annotation tools write, read and written again.

The files are invented; their form is that of Label Studio 1.23, Argilla 2.8 and doccano 1.8. In
their text, `here` begins at the code point 23, which is the UTF-16 code unit 26.
"""

import json
from pathlib import Path

import pytest
from tool_items import (
    FROM_POTATO,
    PROJECT_FILE,
    REAL,
    held_by_argilla,
    held_by_doccano,
    judged,
    judgements_of,
)

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.cli import data
from fgrlhf.data.exporters import EXPORTERS
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.importers.shown_texts import text_of_html
from fgrlhf.data.judgements import JudgedResponse, Judgement
from fgrlhf.text_types import Prompt

FILES = Path(__file__).parent / "fixtures" / "annotation_tools"
TEXT = "Seven is even 🙂 odd 🙂🙂 here now."
HERE = (23, 27)


def read(name, file, **keys):
    return import_items(FILES / file, name, keys)


# ---- Label Studio --------------------------------------------------------------------------------


def test_the_text_of_html():
    text, starts, ends = text_of_html("a&#33;<br>&lt b")
    assert text == "a!< b"
    assert list(zip(starts, ends, strict=True)) == [(0, 1), (1, 6), (10, 13), (13, 14), (14, 15)]
    # a browser reads every line end as one line feed
    text, starts, ends = text_of_html("a<br/>b\r\nc", breaks=True)
    assert text == "a\nb\nc"
    assert list(zip(starts, ends, strict=True)) == [(0, 1), (1, 6), (6, 7), (7, 9), (9, 10)]


def test_label_studio_takes_its_own_annotators_back(tmp_path):
    items, _ = read("label_studio", "label_studio.json")
    rows, _ = EXPORTERS["label_studio"].write(items)
    first, second = rows[0]["annotations"]
    assert (first["completed_by"], second["completed_by"]) == (1, 2)
    mark, quality, tone, fix = first["result"]
    assert mark["value"] == {"start": 23, "end": 27, "text": "here", "labels": ["wrong"]}
    assert quality["value"] == {"number": 4.0}
    assert tone["value"] == {"choices": ["rude", "odd"]}
    assert (fix["type"], fix["value"]) == ("textarea", {"text": ["Seven is odd."]})
    write_json(tmp_path / "t.json", rows)
    again, _ = import_items(tmp_path / "t.json", "label_studio")
    assert [item.judgements for item in again] == [item.judgements for item in items]
    rows, losses = EXPORTERS["label_studio"].write(items, names=False)
    assert not any("completed_by" in one for row in rows for one in row["annotations"])
    assert losses["annotations with the name of an annotator"] == 3


PROJECT = """<View>
  <Text name="answer" value="$text"/><Text name="origin" value="$source"/>
  <Text name="question" value="$prompt"/>
  <Labels name="err" toName="answer"><Label value="wrong"/></Labels>
  <Labels name="left" toName="origin"><Label value="gap"/></Labels>
  <Rating name="stars" toName="answer" perRegion="true"/><Rating name="quality" toName="answer"/>
  <TextArea name="fix" toName="answer"/><TextArea name="long" toName="answer" rows="4"/>
</View>"""


def for_project(tmp_path, *judgements, project=PROJECT):
    """The task of these judgements that is fitted to a project, and what is lost."""
    (tmp_path / "project.xml").write_text(project)
    items = [JudgedResponse(Prompt("0", ""), TEXT, judgements, "1 and 7")]
    keys = {"project": str(tmp_path / "project.xml")}
    (row,), losses = EXPORTERS["label_studio"].write(items, **keys)
    write_json(tmp_path / "t.json", [row])
    return row, losses, import_items(tmp_path / "t.json", "label_studio", keys)[0][0]


def test_tasks_are_fitted_to_a_project(tmp_path):
    judgements = (
        Judgement("err", "wrong", *HERE, score=4.0),
        Judgement("left", "gap", 0, 1, side="source"),
        Judgement("quality", score=5.0),
        Judgement("fix", "comment", reason="a\nb"),
        Judgement("long", "comment", reason="a\nb"),
    )
    row, losses, again = for_project(tmp_path, *judgements)
    assert row["data"] == {"id": "0", "text": TEXT, "source": "1 and 7", "prompt": ""}
    (answer,) = row["annotations"]
    assert answer["ground_truth"] is False  # Label Studio's default for imported ones is true
    mark, stars, gap, quality, fix, long = answer["result"]
    assert (mark["to_name"], mark["type"]) == ("answer", "labels")
    assert (stars["from_name"], stars["value"]["rating"]) == ("stars", 4)
    assert gap["to_name"] == "origin"
    assert (quality["type"], quality["value"]) == ("rating", {"rating": 5})
    assert fix["value"] == {"text": ["a", "b"]} and long["value"] == {"text": ["a\nb"]}
    assert not losses
    assert again.judgements == judgements and again.source == "1 and 7"


def test_what_a_project_has_no_control_for_is_counted(tmp_path):
    judgements = (
        Judgement("tone", "rude"),
        Judgement("err", "wrong", 0, 1, side="source"),
        Judgement("quality", score=4.5),
        Judgement("fix", "wrong"),
        Judgement("err", "no error"),
    )
    row, losses, again = for_project(tmp_path, *judgements)
    assert row["annotations"][0]["result"] == [] and again.judgements == ()
    assert losses == {
        "answers of `tone`, which is no control of the project": 1,
        "answers about the source, which `err` does not judge": 1,
        "answers that are no rating, as `quality` gives": 1,
        "answers that are no textarea, as `fix` gives": 1,
    }


@pytest.mark.parametrize(
    "project, message",
    [
        ("<View>", "is not the XML of a labelling configuration: no element found"),
        ("<View><Text name='a' value='$text'/></View>", "has no control"),
        ("<View><HyperText name='a' value='$text'/></View>", r"shows `\$text` as HyperText"),
    ],
)
def test_files_that_are_no_configuration_of_a_project(tmp_path, project, message):
    with pytest.raises(UserError, match=message):
        for_project(tmp_path, project=project)


# ---- Argilla -------------------------------------------------------------------------------------


def test_argilla_takes_its_own_records_back():
    items, _ = read("argilla", "argilla.json")
    (record,), losses = EXPORTERS["argilla"].write(items)
    original = json.loads((FILES / "argilla.json").read_text())[0]
    assert record["responses"] == original["responses"]
    assert isinstance(record["responses"]["quality"][0]["value"], int)
    assert not losses


def test_a_label_of_argilla_is_a_text_unless_there_are_several():
    one = Judgement("tone", "rude", annotator="a")
    items = [JudgedResponse(Prompt("0", "p"), "abc", (one,))]
    (record,), _ = EXPORTERS["argilla"].write(items)
    assert record["responses"] == {"tone": [{"value": "rude", "user_id": "a"}]}
    both = (one, Judgement("tone", "odd", annotator="a"))
    records, _ = EXPORTERS["argilla"].write([*items, JudgedResponse(Prompt("1", "p"), "a", both)])
    values = [record["responses"]["tone"][0]["value"] for record in records]
    assert values == [["rude"], ["rude", "odd"]]


# ---- doccano -------------------------------------------------------------------------------------


def test_doccano_and_back(tmp_path):
    items, _ = read("doccano", "doccano.jsonl")
    rows, losses = EXPORTERS["doccano"].write(items)
    assert rows[0]["label"] == [[26, 30, "wrong"]] and not losses
    write_jsonl(tmp_path / "d.jsonl", rows)
    assert import_items(tmp_path / "d.jsonl", "doccano")[0] == items
    rows, _ = EXPORTERS["doccano"].write(items, offsets="code_points")
    assert rows[0]["label"] == [[23, 27, "wrong"]]
    marks = (Judgement("x", "a", 0, 1, annotator="a"), Judgement("x", "a", 0, 1, annotator="b"))
    marks += (Judgement("x", "b"),)
    (row,), losses = EXPORTERS["doccano"].write([JudgedResponse(Prompt("0", "p"), "abc", marks)])
    assert row["label"] == [[0, 1, "a"]]
    assert losses == {
        "annotator": 2,
        "marks that another annotator or model made too": 1,
        "judgements that are no labelled span of the response": 1,
    }


def test_rows_for_doccano_have_the_same_keys():
    """It refuses a file with a row without a key of another row, and null beside numbers."""
    metas = ({"n": 1, "t": "x", "filename": "f"}, {"Comments": []}, {"Comments": [1]})
    items = [JudgedResponse(Prompt("0", "", meta=meta), "abc", ()) for meta in metas]
    rows, losses = EXPORTERS["doccano"].write(items)
    assert [(row["n"], row["t"]) for row in rows] == [(1, "x"), ("", None), ("", None)]
    assert len({frozenset(row) for row in rows}) == 1
    assert losses == {
        "values of the key `filename`, which doccano sets": 1,
        "values of the key `Comments`, which doccano sets": 1,
    }


# ---- files that the tools wrote ------------------------------------------------------------------


ADMIN = {"confirmed": True, "annotator": "admin"}


@pytest.mark.parametrize(
    "name, file, keys, items",
    [
        (
            "label_studio",
            "label_studio.json",
            {"project": str(PROJECT_FILE), "aspect": "err"},
            judged("1", "2"),
        ),
        ("argilla", "argilla_nested.json", {}, held_by_argilla()),
        ("argilla", "argilla_flat.json", {}, held_by_argilla()),
        ("doccano", "doccano.jsonl", ADMIN, held_by_doccano()),
        ("potato", "potato.jsonl", {"items": str(REAL / "potato_items.jsonl")}, FROM_POTATO),
    ],
)
def test_exports_of_the_tools(name, file, keys, items):
    """`make tools-check` wrote them: overlaps, emoji, two annotators, a clean answer."""
    again, report = import_items(REAL / file, name, keys)
    again.sort(key=lambda item: item.prompt.id)
    assert judgements_of(again) == judgements_of(items)
    assert [(item.prompt.id, item.response, item.source) for item in again] == [
        (item.prompt.id, item.response, item.source) for item in items
    ]
    assert report.dropped_spans == 0


def test_corrections_that_doccano_wrote():
    (item,), _ = import_items(REAL / "doccano_seq2seq.jsonl", "doccano", {"corrections": True})
    assert item.prompt.meta["correction"] == "Odd."


# ---- all -----------------------------------------------------------------------------------------


def test_suggestions_are_no_errors_where_annotators_judged():
    items, _ = read("label_studio", "label_studio.json")
    rows, losses = EXPORTERS["spans"].write(items[:2])
    assert [len(row["spans"]) for row in rows] == [1, 0]
    assert losses["judgements that m1 suggested and no annotator made"] == 1
    suggested = JudgedResponse(Prompt("0", "p"), "abc", (Judgement("x", "y", 0, 1, origin="m"),))
    (row,), losses = EXPORTERS["spans"].write([suggested])
    assert len(row["spans"]) == 1


def test_keys_of_another_format_are_refused(tmp_path):
    with pytest.raises(UserError, match="argilla has no key offsets; its own keys are: none"):
        read("argilla", "argilla.json", offsets="utf16")
    source, out = str(FILES / "doccano.jsonl"), str(tmp_path / "out.jsonl")
    data.main(["import", source, out, "from=doccano", "confirmed=true", "offsets=utf16"])
    assert json.loads(Path(out).read_text().splitlines()[1])["judgements"][0]["label"] == "no error"
    with pytest.raises(UserError, match="label_studio has no key offsets"):
        data.main(["export", out, f"{out}.json", "to=label_studio", "offsets=utf16"])
