"""Files that annotators sent back, read into a database: every program works as after a server."""

import json

import pytest
from rating_tasks import QUALITY, schema_tree, write_schema

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json
from interface_html import agreement, collect, export, lead
from interface_html.command import main as feedback
from interface_html.database import Database
from interface_html.items import read_items
from interface_html.schema import ASSIGNMENT, load_schema
from interface_html.server import _assignment_json
from interface_html.stored import read_database
from interface_html.tasks import feedback_of

WRONG = {"name": "Wrong", "label": "Wrong", "letter": "W", "key": "1", "color": "#E7040F"}
TEXTS = ["One cat sat here.", "A dog sat there."]
# per annotator: the end of the mark in each item (None: no error), preference, ratings
SAID = {
    "anna": [(3, 1, 4), (None, 2, 3), (7, 1, 5)],
    "ben": [(3, 1, 5), (3, 2, 3), (None, 0, 2)],
    "carla": [(7, 1, 4), (None, 1, 1), (7, 1, 5)],
}


@pytest.fixture
def study(tmp_path, monkeypatch):
    """The task `poems`, its items and the files and records of three annotators."""
    folder = tmp_path / "poems" / "interface_html"
    tree = schema_tree(ratings=[QUALITY], comparison="Which is better?")
    tree |= {"task": "poems", "errors": [{**WRONG, "needs": "nothing", "help": "it is wrong"}]}
    tree["comment"] = "optional"
    write_schema(folder)
    (folder / "schema.js").write_text(f"{ASSIGNMENT} {json.dumps(tree)};", encoding="utf-8")
    (tmp_path / "poems" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    items = []
    for number in range(4):
        texts = [f"{text[:-1]} {number}." for text in TEXTS]
        items.append({"id": str(number), "prompt": f"Say {number}.", "responses": texts})
    write_json(tmp_path / "items.json", items)
    for name, said in SAID.items():
        rows = [row_of(item, *one) for item, one in zip(items, said)]
        rows = rows[::-1] if name == "ben" else rows  # in another order
        record = [entry(name, row["id"]) for row in rows]
        write_json(tmp_path / f"{name}.json", rows)
        skip = {"reason": "language", "text": "", "time": "2026-01-02T03:04:05.678Z"}
        skips = [{"id": "3", "annotator": name, "page": "annotation", "skipped": skip}]
        write_json(tmp_path / f"{name}_record.json", [*record, *skips])
    return tmp_path


def row_of(item, end, preference, quality):
    spans = [] if end is None else [{"start": 0, "end": end, "label": "Wrong"}]
    ratings = [{"quality": quality}, {"quality": 3}]
    row = {**item, "response": item["responses"][0], "spans": spans}
    return {**row, "preferences": [preference], "ratings": ratings}


def entry(name, item, **changes):
    pages = ("annotation", "comparison", "rating")
    each = {page: 10.0 for page in pages}
    of_pages = {
        "submitted": {page: "2026-01-02T03:04:05.678Z" for page in pages},
        "guideline": {page: "7" for page in pages},
        "flag": {page: item == "0" for page in pages},
        "comment": {page: f"{name}: {item}" for page in pages},
    }
    shown = {"order": [1, 0], "rating order": [0, 1], "seen": [{"seconds": 3, "share": 1}] * 2}
    return {
        "id": item,
        "annotator": name,
        "seconds": each,
        "wall": each,
        **shown,
        **of_pages,
    } | changes


def collected(**changes) -> int:
    files = ",".join(f"{name}.json" for name in SAID)
    records = ",".join(f"{name}_record.json" for name in SAID)
    values = {"task": "poems", "db": "f.sqlite", "files": files, "records": records}
    return collect.collect(collect.CollectSettings(**values | changes))


def figures_of(**source):
    return agreement.write_report(agreement.FeedbackAgreementSettings(task="poems", **source))


def test_a_database_of_files_gives_the_figures_of_the_files(study, capsys):
    assert collected(items="items.json") == 27
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "f.sqlite: 27 new judgements (9 annotations, 9 comparisons, 9 ratings) of 3 items by 3"
        " annotators (anna, ben, carla)",
        "  3 skipped items",
    ]
    files = ",".join(f"{name}.json" for name in SAID)
    records = ",".join(f"{name}_record.json" for name in SAID)
    of_files = figures_of(files=files, records=records)
    of_database = figures_of(db="f.sqlite")
    texts, others = ({k: str(v) for k, v in one.items()} for one in (of_database, of_files))
    assert texts == others
    assert of_database["active seconds, rating"].mean == 10
    # 6 of the 8 decided pairs were won by output 0, which all saw second
    assert of_database["share won by the output shown first"].mean == pytest.approx(2 / 8)


def test_majority_adjudication_and_reliability_work_on_files(study):
    collected()
    out = {"task": "poems", "db": "f.sqlite", "out": "out.json"}
    assert export.export(export.FeedbackExportSettings(**out, policy="majority")) == 3
    rows = {row["id"]: row for row in read_json("out.json")}
    assert [span["end"] for span in rows["0"]["spans"]] == [3] and rows["1"]["spans"] == []
    assert [rows[name]["preferences"] for name in "012"] == [[1], [2], [1]]
    assert [rows[name]["ratings"][0]["quality"] for name in "012"] == [4, 3, 5]
    feedback(["adjudicate", "poems", "db=f.sqlite", "out=differ.json"])
    assert {row["id"] for row in read_json("differ.json")} == {"0", "1", "2"}
    feedback(["reliability", "poems", "db=f.sqlite", "out=reliable.json"])
    assert set(read_json("reliable.json")["annotators"]) == set(SAID)
    feedback(["submissions", "poems", "db=f.sqlite", "out=all.jsonl"])
    lines = read_jsonl("all.jsonl")
    assert len(lines) == 27
    first = lines[0]
    assert (first["annotator"], first["page"], first["guideline"]) == ("anna", "annotation", "7")
    assert first["created"] == "2026-01-02T03:04:05.678+00:00"
    assert first["seconds"] == {"active": 10.0, "wall": 10.0}
    assert first["doc"]["comment"] == "anna: 0" and first["doc"]["flag"] is True
    assert lines[1]["order"] == lines[1]["doc"]["order"] == [1, 0] and lines[1]["doc"]["seen"]


def test_the_same_files_again_add_nothing_and_a_change_is_a_revision(study, capsys):
    collected()
    assert collected() == 0
    assert "stored already: 27 judgements" in capsys.readouterr().out
    rows = read_json("anna.json")
    rows[0]["spans"] = []
    write_json("anna.json", rows)
    assert collected(files="anna.json", records="anna_record.json") == 1
    anna = [one for one in read_database("f.sqlite", "poems").all_submissions if one.item == "0"]
    revisions = [one.revision for one in anna if one.annotator == "anna"]
    assert sorted(revisions) == [1, 1, 1, 2]


def test_files_without_records(study, capsys):
    assert collected(records="") == 27
    figures = figures_of(db="f.sqlite")
    assert str(figures["share won by the output shown first"]).startswith("undefined: the order")
    assert figures["active seconds, rating"] == "undefined: no times were recorded"
    stored = read_database("f.sqlite", "poems").all_submissions
    assert {one.annotator for one in stored} == set(SAID)
    assert {one.shown is None for one in stored if one.page != "annotation"} == {True}
    task = feedback_of("poems")
    compared = [one for one in stored if one.page == "comparison"]
    assert lead.first_position(task.schema, compared) == (0, 0, 1)
    database = Database("f.sqlite", "poems")
    (number, _, done) = database.own_assignments("anna", "comparison")[0]
    shown = _assignment_json(task.schema, database.assignment(number, "anna"))
    assert done and shown["order"] == [0, 1] and shown["submitted"]["preference"] == [1]
    database.close()
    assert collected(records="", annotators="x,y,z", db="g.sqlite") == 27
    assert {one.annotator for one in read_database("g.sqlite", "poems").all_submissions} == {*"xyz"}


def test_feedback_that_came_with_the_items_is_not_the_annotators(study):
    seconds = {"annotation": 10.0, "comparison": None, "rating": None}
    record = [entry("anna", str(number), seconds=seconds) for number in range(3)]
    write_json("anna_record.json", record)
    assert collected(files="anna.json", records="anna_record.json") == 3


def test_rows_without_ids_are_found_by_their_texts(study):
    """Each person got other items, so that their numbers mean other texts."""
    for name, keep in (("anna", slice(0, 2)), ("ben", slice(0, 2))):
        rows = read_json(f"{name}.json")[keep]
        write_json(f"{name}.json", [{key: row[key] for key in row if key != "id"} for row in rows])
    collected(files="anna.json,ben.json", records="")
    items = read_database("f.sqlite", "poems").items
    assert {item.id: item.row["prompt"] for item in items} == {
        "0": "Say 0.",
        "1": "Say 1.",
        "0-2": "Say 2.",
    }
    figures = figures_of(files="anna.json,ben.json")
    assert str(figures_of(db="f.sqlite")["preference alpha"]) == str(figures["preference alpha"])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"files": ""}, "files: name the files that annotators sent back"),
        ({"records": "anna_record.json"}, "records names 1 for 3 files"),
        ({"annotators": "a,b"}, "annotators names 2 for 3 files"),
        ({"files": "items.json", "records": ""}, "no row has a judgement"),
    ],
)
def test_what_cannot_be_collected(study, changes, message):
    with pytest.raises(UserError, match=message):
        collected(**changes)
    assert not (study / "f.sqlite").exists()


@pytest.mark.parametrize(
    "skip, reason",
    [
        ({"page": "lunch"}, "the task has no page 'lunch'"),
        ({"annotator": None}, "it must have id, annotator, page and skipped"),
        ({"skipped": {"reason": "hunger", "text": ""}}, "'hunger' is none of"),
    ],
)
def test_a_malformed_skip_is_named(study, skip, reason):
    record = read_json("anna_record.json")
    record[-1] |= skip
    write_json("anna_record.json", record)
    with pytest.raises(UserError, match=f"anna_record.json, skip 0.*{reason}"):
        collected()


def test_the_study_goes_on_with_a_server(study):
    """Collected judgements count for per_item, and their annotators do not get the items again."""
    collected(items="items.json")
    task = feedback_of("poems")
    database = Database("f.sqlite", "poems", per_item=4)
    assert database.add_items(read_items(task, "items.json")) == 0
    assert database.next("anna", "comparison", 2).item.id == "3"
    assert database.next("dora", "comparison", 2).item.id == "0"
    database.close()
    assert load_schema(study / "poems/interface_html/schema.js") == task.schema
