"""Decisions about judgements that have changed since; how the judgements of rows came about."""

import json

import pytest
from made_tasks import ROW as MADE_ROW
from made_tasks import task_with
from test_adjudicate import QA, decided
from test_adjudicate import study as study  # a fixture
from test_database import Clock
from test_rules import doc, error

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli import data
from fgrlhf.data.read import read_rows
from interface_html import export
from interface_html.adjudicate import AdjudicateSettings, adjudicate
from interface_html.assignments import Receipt
from interface_html.database import Database
from interface_html.items import item_json, read_items
from interface_html.merge import MergeSettings, merge
from interface_html.votes import judged_items

DECISION = doc([error("Incoherent", 0, 3)])


def settings_of(study, **values):
    paths = {"task": "qa_feedback", "db": str(study / "f.sqlite"), "out": str(study / "o.json")}
    return export.FeedbackExportSettings(
        **paths, pages="annotation", policy="adjudicated", **values
    )


def exported(study, **values) -> dict:
    """For each item of the export, the kinds of its errors and how it was decided."""
    export.export(settings_of(study, **values))
    rows = json.loads((study / "o.json").read_text())
    return {
        row["question"][9]: (
            [one["error type"] for one in row["feedback"]["errors"]],
            row["decided"]["annotation"],
        )
        for row in rows
    }


def again(database):
    """Anna removes her mark and submits item 1 again."""
    [number] = [n for n, item, _ in database.own_assignments("anna", "annotation") if item == "1"]
    given = database.assignment(number, "anna")
    content = doc(none=True, corrected=given.item.row["prediction 1"])
    database.submit(given, "again", content, Receipt(1, "1"), seen=1)


def skip(database):
    [number] = [n for n, item, _ in database.own_assignments("ben", "annotation") if item == "1"]
    database.skip(database.assignment(number, "ben"), "unsure", "", seen=1)


def newcomer(database):
    for _ in range(2):  # items 0 and 1
        given = database.next("carla", "annotation", 4)
        name = f"carla{given.item.id}"
        if given.item.id == "1":
            database.submit(given, name, doc([error()]), Receipt(1, "1"))
        else:
            database.skip(given, "unsure", "")


@pytest.mark.parametrize(
    "change, words",
    [
        (again, "anna has submitted revision 2 after revision 1"),
        (skip, "the judgement of ben no longer counts"),
        (newcomer, "carla has submitted too"),
    ],
)
def test_a_decision_about_earlier_judgements_is_named(study, capsys, change, words):
    path = decided(study, DECISION)
    assert exported(study, adjudicated=path)["1"] == (["Incoherent"], "adjudicated")
    assert "other submissions" not in capsys.readouterr().out
    database = Database(study / "f.sqlite", "qa_feedback", per_item=3, clock=Clock())
    change(database)
    database.close()
    before = (study / "o.json").read_bytes()
    with pytest.raises(UserError) as refused:
        exported(study, adjudicated=path)
    assert f"item 1, annotation: {words}" in str(refused.value)
    assert "1 decision is about other submissions" in str(refused.value)
    assert (study / "o.json").read_bytes() == before
    assert exported(study, adjudicated=path, stale="keep")["1"] == (["Incoherent"], "adjudicated")
    assert words in capsys.readouterr().out
    kinds, how = exported(study, adjudicated=path, stale="drop")["1"]
    assert "Incoherent" not in kinds and how == ("single" if change is skip else "majority")
    assert f"{words}\nstale=drop: the majority counts there" in capsys.readouterr().out


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_judgement_that_is_as_it_was_leaves_the_decision(study, is_changed):
    """One that was given back after a change, and one that was never changed."""
    path = decided(study, DECISION)
    database = Database(study / "f.sqlite", "qa_feedback", per_item=2, clock=Clock())
    [number] = [n for n, item, _ in database.own_assignments("anna", "annotation") if item == "1"]
    given = database.assignment(number, "anna")
    assert given.submitted is not None
    if is_changed:
        again(database)
    seen = 2 if is_changed else 1
    is_new = database.submit(given, "back", given.submitted, Receipt(1, "1"), seen=seen)
    assert bool(is_new) == is_changed
    database.close()
    assert exported(study, adjudicated=path)["1"] == (["Incoherent"], "adjudicated")


def test_what_changed_is_decided_again(study, capsys):
    """With the old decisions beside the new ones; what is still decided is not written again."""
    path = decided(study, DECISION)
    database = Database(study / "f.sqlite", "qa_feedback", per_item=2, clock=Clock())
    again(database)
    database.close()
    given = {"task": "qa_feedback", "db": str(study / "f.sqlite")}
    out = study / "again.json"
    chosen = adjudicate(AdjudicateSettings(**given, out=str(out), decided=path))
    assert [item.id for item in chosen] == ["1"]  # all agree on item 0
    database = Database(study / "b.sqlite", "qa_feedback", clock=Clock())
    database.add_items(read_items(QA, out))
    item = database.next("cleo", "annotation", 4)
    database.submit(item, "cleo", doc([error("Unverifiable", 8, 11)]), Receipt(1, "1"))
    database.close()
    both = f"{path},{study / 'b.sqlite'}"
    assert exported(study, adjudicated=both)["1"] == (["Unverifiable"], "adjudicated")
    assert exported(study, adjudicated=both)["0"] == (["Irrelevant"], "unanimous")
    with pytest.raises(UserError, match="nothing is left to decide"):
        adjudicate(AdjudicateSettings(**given, out=str(out), decided=both))
    with pytest.raises(UserError, match="stale=keep has no effect without decisions"):
        export.export(settings_of(study, stale="keep").model_copy(update={"policy": "majority"}))


# ---- how rows were decided -----------------------------------------------------------------------

MARKS = [[error("Irrelevant", 0, 7)], [error("Irrelevant", 0, 7)], [error("Incoherent", 4, 7)]]
VALUES = [1, 1, 2]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A task; a function exports a study of it in which anna, ben and carla judged three items.

    Item 0 by one of them, item 1 by two who agree, item 2 by three who do not.
    """
    task = task_with(tmp_path, missing=[], comment="none")
    write_json(
        tmp_path / "rows.json", [{**MADE_ROW, "id": str(i), "prompt": f"{i}?"} for i in range(4)]
    )
    database = Database(tmp_path / "f.sqlite", "made", per_item=3, clock=Clock())
    database.add_items(read_items(task, tmp_path / "rows.json"))
    for count, name, marks, value in zip((3, 3, 3), ("anna", "ben", "carla"), MARKS, VALUES):
        for number in range(count):
            for page, part in (
                ("annotation", doc(marks)),
                ("comparison", {"preference": [value] * 6}),
            ):
                given = database.next(name, page, 4)
                if number < ("anna", "ben", "carla").index(name):
                    database.skip(given, "unsure", "")
                    continue
                order = {} if page == "annotation" else {"order": given.shown}
                database.submit(given, f"{name}{page}{number}", {**part, **order}, Receipt(1, "1"))
    database.close()

    def rows(**values):
        out = tmp_path / "o.json"
        paths = {"task": "made", "db": str(tmp_path / "f.sqlite"), "out": str(out)}
        monkeypatch.setattr("interface_html.export.feedback_of", lambda _: task)
        export.export(export.FeedbackExportSettings(**paths, **values))
        return json.loads(out.read_text())

    return task, rows


def test_rows_say_how_they_were_decided(made):
    _, rows = made
    for policy, third in (("majority", "majority"), ("latest", "latest"), ("first", "first")):
        for page in ("annotation", "comparison"):
            assert [row["decided"][page] for row in rows(policy=policy)] == [
                "single",
                "unanimous",
                third,
            ]
    every = rows(policy="all")
    assert len(every) == 6
    assert {how for row in every for how in row["decided"].values()} == {"single"}
    assert rows(policy="majority", pages="comparison")[2]["decided"]["annotation"] == "majority"


def test_judgements_that_came_with_items_keep_how_they_were_decided(made, tmp_path, monkeypatch):
    """Of another export; those of other files are `given`."""
    task, rows = made
    earlier = [row for row in rows(policy="majority")]
    del earlier[0]["decided"]
    write_json(tmp_path / "earlier.json", earlier)
    items = read_items(task, tmp_path / "earlier.json")
    judged, _ = judged_items(task.schema, items, [], "majority", task.schema.pages)
    found = [item.row["decided"] for item in judged]
    assert found == [
        dict.fromkeys(("annotation", "comparison"), how)
        for how in ("given", "unanimous", "majority")
    ]
    own = [{**earlier[0], "decided": True}]
    write_json(tmp_path / "earlier.json", own)
    items = read_items(task, tmp_path / "earlier.json")
    with pytest.raises(UserError, match="a key `decided` of its own"):
        judged_items(task.schema, items, [], "majority", task.schema.pages)


def test_every_reader_of_rows_keeps_how_they_were_decided(made, tmp_path, monkeypatch):
    task, rows = made
    expected = [row["decided"] for row in rows(policy="majority")]
    path = str(tmp_path / "o.json")
    for name in ("spans", "comparisons", "prompts"):
        if name != "prompts":
            data.main(["check", path, f"format={name}"])
        for out in (f"{name}.jsonl", f"{name}.parquet"):
            given = [] if name != "prompts" else ["columns={references: references}"]
            data.main(["convert", path, str(tmp_path / out), f"format={name}", *given])
            assert [row["decided"] for row in read_rows(tmp_path / out)] == expected
    out = str(tmp_path / "j.jsonl")
    data.main(["convert", path, out, "format=spans", "to=judgements"])
    assert [row["decided"] for row in read_rows(out)] == expected
    back = str(tmp_path / "back.jsonl")
    data.main(["export", out, back, "to=spans"])
    assert [row["decided"] for row in read_rows(back)] == expected
    items = read_items(task, path)
    assert [item_json(task, item)["decided"] for item in items] == expected
    monkeypatch.setattr("interface_html.merge.feedback_of", lambda _: task)
    later = read_rows(path)[1:2]
    later[0] |= {"decided": {"annotation": "adjudicated"}}
    del later[0]["preferences"]
    write_json(tmp_path / "later.json", later)
    merged = str(tmp_path / "merged.json")
    merge(MergeSettings(task="made", files=f"{path},{tmp_path / 'later.json'}", out=merged))
    expected[1] = {"annotation": "adjudicated", "comparison": "unanimous"}
    assert [row["decided"] for row in read_rows(merged)] == expected
