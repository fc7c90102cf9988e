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


def of(judged, annotator):
    return [judgement for judgement in judged.judgements if judgement.annotator == annotator]


# ---- Label Studio --------------------------------------------------------------------------------


def test_label_studio():
    (first, fine, unseen), report = read("label_studio", "label_studio.json")
    assert of(first, "1") == [
        Judgement("err", "wrong", *HERE, annotator="1"),
        Judgement("quality", score=4.0, annotator="1"),
        Judgement("tone", "rude", annotator="1"),
        Judgement("tone", "odd", annotator="1"),
        Judgement("fix", "comment", annotator="1", reason="Seven is odd."),
    ]
    # an empty answer is one; a task that nobody judged, or that was skipped, has none
    assert of(first, "2") == [Judgement("err", "no error", annotator="2")]
    assert fine.judgements == (Judgement("err", "no error", annotator="1"),)
    assert unseen.judgements == ()
    # the list of predictions has numbers, and the annotation has what it began with
    assert of(first, None) == [Judgement("err", "wrong", 0, 5, origin="m1")]
    assert report.spans == {"exact offset": 2}
    assert report.notes == {"annotations without a mark, read as `no error`": 2}
    assert report.losses == {"cancelled annotations": 1, "scores of predictions": 1}


def test_an_answer_without_a_mark_is_clean_if_marks_were_asked_for(tmp_path):
    rating = {"id": "1", "from_name": "quality", "type": "rating", "value": {"rating": 5}}
    annotation = {"completed_by": 1, "result": [rating]}
    write_json(tmp_path / "t.json", [{"data": {"text": "Fine."}, "annotations": [annotation]}])
    rated = Judgement("quality", score=5.0, annotator="1")
    (item,), _ = import_items(tmp_path / "t.json", "label_studio")
    assert item.judgements == (rated,)
    (item,), _ = import_items(tmp_path / "t.json", "label_studio", {"aspect": "err"})
    assert item.judgements == (rated, Judgement("err", "no error", annotator="1"))
    empty = [{"data": {"text": "Fine."}, "annotations": [annotation | {"result": []}]}]
    write_json(tmp_path / "t.json", empty)
    (item,), report = import_items(tmp_path / "t.json", "label_studio")
    assert item.judgements == ()
    assert report.losses == {"annotations without results, of no known aspect (aspect=NAME)": 1}


def test_label_studio_counts_code_points_in_predictions_without_a_text(tmp_path):
    value = {"start": 23, "end": 27, "labels": ["wrong"]}
    result = {"id": "1", "from_name": "err", "to_name": "text", "type": "labels", "value": value}
    task = {"data": {"text": TEXT}, "predictions": [{"model_version": "m", "result": [result]}]}
    write_json(tmp_path / "t.json", [task])
    (item,), _ = import_items(tmp_path / "t.json", "label_studio")
    assert item.judgements == (Judgement("err", "wrong", *HERE, origin="m"),)


def test_regions_of_one_id_with_other_offsets_are_regions_of_their_own(tmp_path):
    results = []
    for start, end, label in ((4, 7, "A"), (25, 29, "B")):
        value = {"start": start, "end": end, "labels": [label]}
        results.append({"id": "r", "from_name": "err", "type": "labels", "value": value})
    severity = {"id": "r", "from_name": "severity", "type": "choices"}
    results.append(severity | {"value": {"start": 25, "end": 29, "choices": ["minor"]}})
    task = {"data": {"text": "The sun is small and the moon is big."}}
    write_json(tmp_path / "t.json", [task | {"annotations": [{"result": results}]}])
    (item,), _ = import_items(tmp_path / "t.json", "label_studio")
    assert item.judgements == (
        Judgement("err", "A", 4, 7),
        Judgement("err", "B", 25, 29, "minor"),
    )


def test_hypertext_is_marked_in_its_source():
    (item,), report = read("label_studio", "label_studio_hypertext.json")
    marked = [item.response[slice(*judgement.span)] for judgement in item.judgements]
    assert marked == ["here", "Seven &amp; <b>eight"]
    assert report.spans == {"exact offset": 2}


def test_the_text_of_html():
    text, starts, ends = text_of_html("a&#33;<br>&lt b")
    assert text == "a!< b"
    assert list(zip(starts, ends, strict=True)) == [(0, 1), (1, 6), (10, 13), (13, 14), (14, 15)]


def test_paragraphs_become_lines():
    (item,), report = read("label_studio", "label_studio_paragraphs.json")
    assert item.response == "User: Count.\nBot: One 🙂 two here."
    (judgement,) = item.judgements
    assert item.response[slice(*judgement.span)] == "here"
    assert report.spans == {"exact offset": 1}


def task(data, *annotations, **keys):
    """A task of Label Studio; an annotation is its annotator and results."""
    made = [{"completed_by": who, "result": results} for who, results in annotations]
    return {"id": 1, "data": data, "annotations": made, **keys}


def region(quote, kind="labels", **value):
    value = {"text": quote, kind: ["wrong"], **value}
    return {"id": "r", "from_name": "err", "to_name": "text", "type": kind, "value": value}


def test_line_breaks_in_the_text_of_a_region_are_written_as_backslash_n(tmp_path):
    lines = task({"text": "One.\nTwo is here."}, (1, [region("One.\\nTwo", start=0, end=8)]))
    turns = [{"author": "A", "text": "Hi 🙂 there"}, {"author": "B", "text": "🙂🙂 yes it is"}]
    of_turns = region("there\\n\\n🙂🙂 yes", "paragraphlabels", start="0", end="1")
    of_turns["value"] |= {"startOffset": 6, "endOffset": 8}
    paths = {"start": "/p[1]/text()[1]", "end": "/p[2]/text()[1]"}
    of_html = region("One.\\n\\nTwo", "hypertextlabels", **paths)
    of_html["value"]["globalOffsets"] = {"start": 0, "end": 7}
    html = task({"text": "<p>One.</p><p>Two.</p>"}, (1, [of_html]))
    path = tmp_path / "tasks.json"
    write_json(path, [lines, task({"response": turns}, (1, [of_turns])), html])
    items, report = import_items(path, "label_studio", {})
    marked = []
    for item in items:
        (judgement,) = item.judgements
        marked.append(item.response[judgement.span[0] : judgement.span[1]])
    assert marked == ["One.\nTwo", "there\nB: 🙂🙂 yes", "One.</p><p>Two"]
    assert report.spans == {"exact offset": 3}


def test_a_person_who_annotates_a_task_twice_is_one_person(tmp_path):
    mark = region("Two", start=0, end=3)
    rows = [
        task({"text": "Two is one."}, (1, [mark]), (1, [mark]), (1, []), (2, [])),
        task({"text": "Two is odd."}, (1, []), (1, [])),
    ]
    path = tmp_path / "tasks.json"
    write_json(path, rows)
    (first, second), report = import_items(path, "label_studio", {})
    wrong = Judgement("err", "wrong", 0, 3, annotator="1")
    assert first.judgements == (wrong, Judgement("err", "no error", annotator="2"))
    assert second.judgements == (Judgement("err", "no error", annotator="1"),)
    assert report.notes["judgements that a person gave twice, or took back"] == 3


def test_the_only_text_of_a_task_is_judged(tmp_path):
    path = tmp_path / "tasks.json"
    write_json(path, [task({"document": "Two is one.", "prompt": "Say it."}, drafts=[{}, {}])])
    (item,), report = import_items(path, "label_studio", {})
    assert (item.prompt.text, item.response) == ("Say it.", "Two is one.")
    assert report.losses == {"drafts of annotations": 2}
    write_json(path, [task({"answer1": "Two", "answer2": "One"})])
    with pytest.raises(UserError, match="Rename the key of the judged text"):
        import_items(path, "label_studio", {})


def test_answers_with_other_results_but_no_mark_are_noted(tmp_path):
    verdict = {"from_name": "tone", "to_name": "text", "type": "choices"}
    verdict["value"] = {"choices": ["rude"]}
    marked = task({"text": "Two is odd."}, (1, [region("Two", start=0, end=3), verdict]))
    unmarked = task({"text": "Two is one."}, (1, [verdict]))
    path = tmp_path / "tasks.json"
    for rows, count in (([marked, unmarked], 1), ([unmarked], 0)):
        write_json(path, rows)
        _, report = import_items(path, "label_studio", {})
        assert sum(n for note, n in report.notes.items() if "aspect=NAME" in note) == count


def test_json_min_is_named():
    with pytest.raises(UserError, match="JSON-MIN, .* Export the project as JSON"):
        read("label_studio", "label_studio_json_min.json")


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


def test_flattened_argilla():
    (first, unseen), report = read("argilla", "argilla_flat.json")
    assert first.judgements == (
        Judgement("err", "wrong", *HERE, annotator="u1"),
        Judgement("err", "no error", annotator="u2"),
        Judgement("quality", score=4.0, annotator="u1"),
        Judgement("err", "wrong", 0, 5, origin="m1"),
    )
    assert (first.prompt.id, first.prompt.text) == ("r1", "Count.")
    assert first.prompt.meta == {"topic": "numbers"}
    assert unseen.judgements == ()
    assert report.losses == {"discarded answers": 1, "drafts of answers": 1}
    assert not report.notes


def test_answers_of_pending_records_are_noted():
    (item,), report = read("argilla", "argilla.json")
    assert of(item, "u2") == [Judgement("err", "no error", annotator="u2")]
    (note,) = report.notes
    assert "may be drafts or discarded" in note and "flatten=True" in note


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


def test_doccano_counts_utf16_code_units():
    (first, fine), report = read("doccano", "doccano.jsonl")
    assert first.judgements == (Judgement("label", "wrong", *HERE),)
    assert (first.prompt.text, first.source) == ("Count.", "7")
    assert report.spans == {"offset without a quote (UTF-16 code units)": 1}
    assert fine.judgements == ()
    assert list(report.notes.values()) == [1]


@pytest.mark.parametrize("unit", ["graphemes", "code_points"])
def test_the_unit_of_doccano_can_be_given(tmp_path, unit):
    write_jsonl(tmp_path / "d.jsonl", [{"text": TEXT, "label": [[*HERE, "wrong"]]}])
    (item,), _ = import_items(tmp_path / "d.jsonl", "doccano", {"offsets": unit})
    assert item.judgements[0].span == HERE


def test_confirmed_rows_of_doccano_without_a_label_are_clean():
    (first, fine), _ = read("doccano", "doccano.jsonl", confirmed=True, annotator="ann")
    assert fine.judgements == (Judgement("label", "no error", annotator="ann"),)
    assert first.judgements == (Judgement("label", "wrong", *HERE, annotator="ann"),)


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


def test_texts_of_doccano_can_be_corrections(tmp_path):
    write_jsonl(tmp_path / "d.jsonl", [{"text": "Abc.", "label": ["Abd.", "Abe."]}])
    (item,), report = import_items(tmp_path / "d.jsonl", "doccano", {"corrections": True})
    assert item.judgements == () and item.prompt.meta == {"correction": "Abd."}
    assert report.losses == {"further corrections of a text": 1}


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
