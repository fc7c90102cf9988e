"""Ratings in Python: the rules, rows, the export, agreement, and rows read as comparisons."""

import json
import re

import pytest
from fastapi.testclient import TestClient
from rating_tasks import CLARITY, QUALITY, rating_task, row, write_schema
from server_helpers import write_export

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl, write_json, write_jsonl
from fgrlhf.base.records import DataError
from fgrlhf.cli.data import main as data_main
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.stats import Interval
from interface_html import agreement, reliability
from interface_html.agreement_figures import report
from interface_html.assignments import Receipt
from interface_html.database import Database
from interface_html.format import RATINGS, Item
from interface_html.items import item_json, read_items
from interface_html.judged_items import JudgedItem, judged_in_database, judged_in_files
from interface_html.lead import Tokens, add_lead_page
from interface_html.merge import MergeSettings, merge
from interface_html.ratings import median_ratings, rating_problems
from interface_html.schema import load_schema
from interface_html.server import create_app
from interface_html.stored import read_fitting_study
from interface_html.submissions import SubmissionsSettings, write_submissions
from interface_html.tasks import feedback_of
from interface_html.votes import judged_items

GOOD = {"first": {"quality": 4, "clarity": 80}, "second": {"quality": 2, "clarity": 0}}
IN_ROW = [{"quality": 4, "clarity": 80}, {"quality": 2, "clarity": 0}]


def changed(output: str, **values) -> dict:
    return {**GOOD, output: {**GOOD[output], **values}}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return rating_task(tmp_path_factory.mktemp("rated"))


# ---- the schema ----------------------------------------------------------------------------------


def test_a_task_may_only_rate_a_single_output(tmp_path):
    schema = rating_task(tmp_path, outputs=["only"], ratings=[QUALITY]).schema
    assert schema.pages == ("rating",)
    assert (schema.ratings[0].points, schema.ratings[0].lowest, schema.ratings[0].highest) == (
        (5, 1, 5)
    )


@pytest.mark.parametrize(
    "ratings, message",
    [
        ([QUALITY, {**CLARITY, "name": "quality"}], "two ratings have the name 'quality'"),
        ([{**QUALITY, "anchors": {"6": "best"}}], "an anchor for '6', which is no value"),
        ([{**CLARITY, "anchors": {"101": "best"}}], "set anchors for 0 to 100"),
        ([{**QUALITY, "points": 10}], "less than or equal to 9"),
        ([{**QUALITY, "scale": "stars"}], "likert"),
        ([], "`comparison` or `ratings`"),
    ],
)
def test_mistakes_of_a_schema_are_named(tmp_path, ratings, message):
    with pytest.raises(UserError) as error:
        load_schema(write_schema(tmp_path, ratings=ratings))
    assert message in str(error.value)


# ---- rules (the browser has the same: test_page_rules.py) ---------------------------------------

# ratings, and the fields that are complained about
CASES = [
    (GOOD, []),
    (changed("first", quality=1, clarity=100), []),
    (changed("first", quality=0), ["ratings.first.quality"]),
    (changed("first", quality=6), ["ratings.first.quality"]),
    (changed("second", clarity=101), ["ratings.second.clarity"]),
    (changed("second", clarity=-1), ["ratings.second.clarity"]),
    (changed("second", clarity=2.5), ["ratings.second.clarity"]),
    (changed("second", clarity="80"), ["ratings.second.clarity"]),
    (changed("second", clarity=None), ["ratings.second.clarity"]),
    (changed("first", quality=True), ["ratings.first.quality"]),
    (changed("first", more=1), ["ratings.first.more"]),
    ({**GOOD, "third": {}}, ["ratings.third"]),
    ({**GOOD, "second": {}}, ["ratings.second.quality", "ratings.second.clarity"]),
    ({**GOOD, "second": [1, 2]}, ["ratings.second"]),
    ({"first": GOOD["first"]}, ["ratings.second"]),
    ({}, ["ratings.first", "ratings.second"]),
]


@pytest.mark.parametrize("ratings, fields", CASES)
def test_every_rule_has_its_field(task, ratings, fields):
    problems = rating_problems(task.schema, {"ratings": ratings, "order": [1, 0]})
    assert [field for field, _ in problems] == fields


def test_the_document_around_the_ratings(task):
    def fields(doc):
        return [field for field, _ in rating_problems(task.schema, doc)]

    assert fields({"ratings": GOOD, "order": [0, 0]}) == ["order"]
    assert fields({"ratings": GOOD, "order": [0, 1], "x": 1}) == ["x"]
    assert fields({"ratings": [GOOD], "order": [0, 1]}) == ["ratings"]
    assert fields({"order": [0, 1]}) == ["ratings"]
    assert fields([]) == ["rating"]


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_with_ratings_come_back(task, tmp_path):
    rows = [row(0, ratings=IN_ROW, rating="a key of the task"), row(1)]
    write_json(tmp_path / "rows.json", rows)
    items = read_items(task, tmp_path / "rows.json")
    assert items[0].ratings == GOOD and items[1].ratings is None
    assert [item_json(task, item) for item in items] == [
        row(0, ratings=IN_ROW) | {"rating": "a key of the task"},
        row(1),
    ]


@pytest.mark.parametrize(
    "ratings, message",
    [
        ([{"quality": 9, "clarity": 80}, IN_ROW[1]], "`ratings[0].quality`: 9 is no whole number"),
        ([IN_ROW[0], {"quality": 2}], "`ratings[1].clarity`: missing"),
        (IN_ROW[:1], "`ratings`: has 1 entries, must have 2"),
        ({"quality": 1}, "`ratings`: must be a list"),
        ([4, 2], "`ratings[0]`: must be an object"),
    ],
)
def test_malformed_ratings_of_a_row_are_named(task, tmp_path, ratings, message):
    write_json(tmp_path / "rows.json", [row(0, ratings=ratings)])
    with pytest.raises(DataError) as error:
        read_items(task, tmp_path / "rows.json")
    assert message in str(error.value)


def test_without_scales_ratings_are_a_key_of_the_task(tmp_path):
    task = feedback_of("detoxification")
    given = {"id": "t", "prompt": "Say", "response": "Hello.", "ratings": {"helpful": 3}}
    write_json(tmp_path / "rows.json", [given])
    (item,) = read_items(task, tmp_path / "rows.json")
    assert item.ratings is None and item_json(task, item) == given


def test_rounds_are_merged(task, tmp_path, monkeypatch):
    monkeypatch.setattr("interface_html.merge.feedback_of", lambda name: task)
    later = [{"quality": 5, "clarity": 1}, IN_ROW[1]]
    write_json(tmp_path / "one.json", [row(0, ratings=IN_ROW)])
    write_json(tmp_path / "two.json", [row(0, ratings=later)])
    files = f"{tmp_path}/one.json,{tmp_path}/two.json"
    merge(MergeSettings(task="rated", files=files, out=f"{tmp_path}/all.json"))
    assert read_json(tmp_path / "all.json") == [row(0, ratings=later)]


# ---- rows as comparisons -------------------------------------------------------------------------


def test_a_rated_row_is_read_as_a_comparison(tmp_path):
    source = tmp_path / "rows.jsonl"
    write_jsonl(source, [row(0, ratings=IN_ROW), row(1, ratings=[IN_ROW[1], IN_ROW[0]])])
    read = COMPARISONS.read(source, {"scores": "ratings.quality"})
    assert [(item.pairs, item.margins) for item in read] == [(((0, 1),), (2,)), (((1, 0),), (2,))]
    columns = "columns={scores: ratings.clarity}"
    out = tmp_path / "pairs.jsonl"
    data_main(["convert", str(source), str(out), "format=comparisons", columns, "to=pairs"])
    chosen = [pair["chosen"] for pair in read_jsonl(out)]
    assert chosen == ["The first text of 0.", "The second text of 1."]


# ---- several annotators --------------------------------------------------------------------------


def test_the_median_by_hand(task):
    third = changed("first", quality=1, clarity=90)
    medians = median_ratings(task.schema, [GOOD, changed("first", quality=5), third])
    assert medians == {"first": {"quality": 4, "clarity": 80}, "second": GOOD["second"]}
    assert median_ratings(task.schema, [GOOD, third])["first"] == {"quality": 1, "clarity": 80}


def test_ordinal_alpha_by_hand(tmp_path):
    """Units (1, 1), (2, 3) and (3, 3): margins 2, 1, 3 of the values 1, 2, 3.

    Squared distances: 1-2: 1.5^2, 2-3: 2^2, 1-3: 3.5^2. Observed: 2 x 4 = 8. Expected:
    2 (2 x 1 x 2.25 + 1 x 3 x 4 + 2 x 3 x 12.25) = 180. alpha = 1 - 5 x 8 / 180 = 7 / 9.
    """
    task = rating_task(tmp_path, outputs=["only"], ratings=[QUALITY])
    schema = task.schema
    values = [(1, 1), (2, 3), (3, 3)]
    judged = []
    for number, pair in enumerate(values):
        texts = {schema.fields.title: f"prompt {number}", "only": "An answer."}
        given = {name: {"only": {"quality": value}} for name, value in zip("ab", pair)}
        judged.append(JudgedItem(Item(str(number), texts), ratings=given))
    name = "alpha, scores of quality (ordinal)"
    figure = report(task, judged)[name]
    assert figure.mean == pytest.approx(7 / 9)
    for entry in judged:
        del entry.ratings["b"]
    assert report(task, judged)[name] == "undefined: no response was judged by two annotators"


def test_a_scale_or_an_output_that_was_added_later_is_told(tmp_path):
    older = rating_task(tmp_path / "older", ratings=[QUALITY])
    newer = rating_task(tmp_path / "newer")
    path = tmp_path / "f.sqlite"
    database = Database(path, "rated")
    database.add_items([Item("0", older.format.item_row(older.schema, row(), ""))])
    given = database.next("anna", "rating", 2)
    rated = {output: {"quality": 4} for output in GOOD}
    database.submit(given, "a", {"ratings": rated, "order": given.shown}, Receipt(1.0, "1"))
    assert judged_in_database(older, str(path))[0].ratings == {"anna": rated}
    message = "without a value for a scale .*the rating of item '0' by anna"
    with pytest.raises(UserError, match=message):
        judged_in_database(newer, str(path))
    assert read_fitting_study(path, newer.schema, ["comparison"]).submissions
    longer = rating_task(tmp_path / "longer", outputs=("first", "second", "third"))
    with pytest.raises(UserError, match="item '0' has no third, which schema.js has now"):
        judged_in_database(longer, str(path))
    app = create_app(newer, database, ["testserver"], tokens=False)
    add_lead_page(app, newer, database, Tokens("admin", "reader"))
    answer = TestClient(app).get("/api/lead", headers={"Authorization": "Bearer admin"})
    assert answer.status_code == 409 and "submit these items again" in answer.json()["error"]
    database.submit(given, "b", {"ratings": GOOD, "order": given.shown}, Receipt(1.0, "1"), seen=1)
    database.close()
    assert judged_in_database(newer, str(path))[0].ratings == {"anna": GOOD}


def test_the_reliability_is_not_of_ratings(task, monkeypatch):
    monkeypatch.setattr("interface_html.reliability.feedback_of", lambda name: task)
    with pytest.raises(UserError, match="the task rated has ratings only: their agreement is a"):
        reliability.write_report(reliability.ReliabilitySettings(task="rated", db="none.sqlite"))


@pytest.fixture
def database(task, tmp_path, monkeypatch):
    """Two items, rated by anna and ben; anna has rated the first one twice."""
    for program in ("export", "submissions", "agreement"):
        monkeypatch.setattr(f"interface_html.{program}.feedback_of", lambda name: task)
    write_json(tmp_path / "rows.json", [row(0), row(1), row(2)])
    path = tmp_path / "feedback.sqlite"
    store = Database(path, "rated", per_item=2)
    store.add_items(read_items(task, tmp_path / "rows.json"))

    def submit(annotator, ratings, uuid, given=None):
        given = given or store.next(annotator, "rating", 2)
        doc = {"ratings": ratings, "order": given.shown}
        store.submit(given, uuid, doc, Receipt(2.0, "1", 3.0), 0, confirmed=True)
        return given

    again = submit("anna", changed("first", quality=1), "a")
    submit("anna", GOOD, "b", again)
    submit("anna", changed("second", quality=3), "c")
    submit("ben", changed("first", quality=5), "d")
    submit("ben", changed("second", quality=3), "e")
    store.close()
    return path


def test_the_export_of_ratings(database, tmp_path):
    def exported(policy):
        out = tmp_path / f"{policy}.json"
        write_export(database, out, "rated", policy=policy, pages="rating")
        return [entry["ratings"][0]["quality"] for entry in read_json(out)]

    assert exported("first") == [1, 4]
    assert exported("latest") == [5, 4]
    assert exported("majority") == [4, 4]  # of 4 and 5 the lower one
    assert exported("all") == [4, 5, 4, 4]


def test_submissions_and_agreement(database, task, tmp_path, capsys):
    out = tmp_path / "submissions.jsonl"
    write_submissions(SubmissionsSettings(task="rated", db=str(database), out=str(out)))
    lines = read_jsonl(out)
    assert [(line["page"], line["revision"]) for line in lines[:2]] == [
        ("rating", 1),
        ("rating", 2),
    ]
    assert all(line["doc"]["order"] == line["order"] for line in lines)
    figures = agreement.write_report(
        agreement.FeedbackAgreementSettings(task="rated", db=str(database))
    )
    # quality: units (4, 5), (2, 2), (4, 4), (3, 3)
    assert isinstance(figures["alpha, scores of quality (ordinal)"], Interval)
    text = capsys.readouterr().out
    assert re.search("items rated by two or more +2\n", text)
    assert "anna: 2 items" in text
    judged = judged_in_database(task, str(database))
    assert judged[0].ratings == {"anna": GOOD, "ben": changed("first", quality=5)}
    write_json(tmp_path / "a.json", [row(0, ratings=IN_ROW)])
    (entry,) = judged_in_files(task, [str(tmp_path / "a.json")])
    assert list(entry.ratings.values()) == [GOOD]


def test_a_row_needs_the_pages_that_are_asked_for(tmp_path):
    task = rating_task(tmp_path, comparison="Which is better?")
    assert task.schema.pages == ("comparison", "rating")
    write_json(tmp_path / "rows.json", [row(0, ratings=IN_ROW), row(1, preferences=[1])])
    items = read_items(task, tmp_path / "rows.json")

    def kept(*pages):
        judged, _ = judged_items(task.schema, items, [], "latest", pages)
        return [item.id for item in judged]

    assert kept("rating") == ["0"] and kept("comparison") == ["1"]
    assert kept("comparison", "rating") == []
    assert RATINGS in items[0].row


def test_the_seven_text_tasks_rate_two_aspects_from_one_to_five():
    names = ("imdb", "cnn_dailymail", "common_gen", "totto")
    for name in (*names, "narrative_qa", "iwslt2017", "daily_dialog"):
        schema = feedback_of(name).schema
        assert [(scale.scale, scale.highest) for scale in schema.ratings] == [("likert", 5)] * 2
        assert schema.ratings[0].name == "coherence"
        assert all(set(scale.anchors) == {"1", "5"} and scale.help for scale in schema.ratings)
        assert json.dumps(schema.pages) == '["annotation", "comparison", "rating"]'
