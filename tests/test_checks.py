"""Hidden gold and repeated items: positions, what annotators see, exports, old databases."""

import itertools
import json
import random

import pytest
from page_helpers import ITEM, QA
from server_helpers import Client, serving
from test_database import Clock, submit

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from interface_html import export
from interface_html.checks import GAP, Plan, gold_tell, items_to_come, slot
from interface_html.database import Database
from interface_html.format import Item
from interface_html.reliability import ReliabilitySettings, write_report
from interface_html.serve import ServeSettings, _add_items, _gold_items
from interface_html.stored import read_database
from interface_html.submissions import SubmissionsSettings, write_submissions

NUMBERS = itertools.count()  # of submissions
FEEDBACK = {"errors": [], "missing-info": [], "corrected-prediction": ITEM["prediction 1"]}


def gold_item(number, pages=("annotation",)):
    return Item(f"gold {number}", {"text": f"gold text {number}"}), pages


@pytest.fixture
def db(tmp_path):
    plan = Plan(gold_every=5, repeat_every=4)
    database = Database(tmp_path / "f.sqlite", "t", per_item=3, clock=Clock(), plan=plan)
    database.add_items([Item(str(i), {"text": f"text {i}"}) for i in range(40)])
    assert database.add_gold([gold_item(i) for i in range(3)]) == 3
    yield database
    database.close()


def all_given(db, name, page="annotation"):
    """The ids of all items that an annotator gets, with the progress after each."""
    given = []
    progress = []
    while assignment := db.next(name, page, 4):
        given.append(assignment.item)
        submit(db, assignment, next(NUMBERS))
        progress.append(db.progress(name, page))
    return given, progress


def test_each_window_has_one_gold_and_one_other_repeated_item():
    plan = Plan(gold_every=10, repeat_every=20)
    sequences = set()
    for seed in range(20):
        kinds = [slot(seed, plan, position) for position in range(200)]
        assert [kinds[i : i + 10].count("gold") for i in range(0, 200, 10)] == [1] * 20
        assert [kinds[i : i + 20].count("repeat") for i in range(0, 200, 20)] == [1] * 10
        sequences.add(tuple(kinds))
    assert len(sequences) == 20
    assert "repeat" not in [slot(0, Plan(gold_every=10), position) for position in range(200)]


def test_annotators_get_each_gold_item_once_and_own_items_again(db):
    for name in ("anna", "ben"):
        given, progress = all_given(db, name)
        kinds = [read_database(db.path, "t").hidden.get(item.id) for item in given]
        gold = [check.original for check in kinds if check and check.kind == "gold"]
        assert sorted(gold) == ["gold 0", "gold 1", "gold 2"]
        repeated = [check.original for check in kinds if check and check.kind == "repeat"]
        assert len(repeated) == len(set(repeated)) > 5
        assert sum(check is None for check in kinds) == 40
        ids = [item.id for item in given]
        for item, check in zip(given, kinds):
            if check and check.kind == "repeat":
                assert ids.index(item.id) - ids.index(check.original) >= GAP
                assert item.row == given[ids.index(check.original)].row
        # the total never changes, and each item counts
        assert progress == [(i + 1, len(given)) for i in range(len(given))]
    checks = read_database(db.path, "t").hidden
    assert sum(check.kind == "gold" for check in checks.values()) == 3


def test_the_total_is_what_an_annotator_can_still_get(tmp_path):
    """Items that others have judged, and skipped ones, are not for this annotator."""
    clock = Clock()
    db = Database(tmp_path / "f.sqlite", "t", lease_seconds=60, clock=clock)
    db.add_items([Item(str(i), {"text": f"text {i}"}) for i in range(4)])
    assert db.progress("a", "annotation") == db.progress("b", "annotation") == (0, 4)
    submit(db, db.next("a", "annotation", 4), next(NUMBERS))
    held = db.next("a", "annotation", 4)
    assert db.progress("a", "annotation") == (1, 4)
    assert db.progress("b", "annotation") == (0, 2)
    db.skip(held, "unsure", "")
    assert db.progress("a", "annotation") == (1, 3)
    assert db.progress("b", "annotation") == (0, 3)
    late = db.next("a", "annotation", 4)
    clock.now += 100  # the lease ends, and b takes everything that is left
    given, progress = all_given(db, "b")
    assert [item.id for item in given] == ["1", "2", "3"] and progress[-1] == (3, 3)
    assert db.next("a", "annotation", 4) is None and late.item.id == "2"
    assert db.progress("a", "annotation") == (1, 1)
    db.close()


@pytest.mark.parametrize("seed", range(4))
def test_every_annotator_reaches_the_total(tmp_path, seed):
    """With shared items, hidden items, skips and leases that end."""
    rng = random.Random(seed)
    clock = Clock()
    plan = Plan(gold_every=5, repeat_every=4)
    db = Database(tmp_path / "f.sqlite", "t", 2, 60, clock, plan)
    db.add_items([Item(str(i), {"text": f"text {i}"}) for i in range(40)])
    db.add_gold([gold_item(i) for i in range(3)])
    working = ["a", "b", "c", "d"]
    while working:
        name = rng.choice(working)
        assignment = db.next(name, "annotation", 4)
        done, total = db.progress(name, "annotation")
        if assignment is None:
            working.remove(name)
        elif rng.random() < 0.2:
            clock.now += rng.choice([0, 100])  # somebody else goes on
        elif rng.random() < 0.2:
            db.skip(assignment, "unsure", "")
        else:
            submit(db, assignment, next(NUMBERS))
            assert db.progress(name, "annotation")[0] == done + 1 <= total
    clock.now += 100  # all leases have ended, and items that were skipped go to others
    for name in "abcd":
        while assignment := db.next(name, "annotation", 4):
            before = db.progress(name, "annotation")
            submit(db, assignment, next(NUMBERS))
            assert db.progress(name, "annotation") == (before[0] + 1, before[1])
        done, total = db.progress(name, "annotation")
        assert done == total
    db.close()


def test_gold_items_come_only_on_their_judged_pages(db):
    given, progress = all_given(db, "anna", "comparison")
    checks = read_database(db.path, "t").hidden
    assert not any(item.id in checks and checks[item.id].kind == "gold" for item in given)
    assert progress[-1] == (len(given), len(given))


def test_hidden_items_are_given_again_after_their_lease(tmp_path):
    """Others who have a gold item do not take it from an annotator."""
    clock = Clock()
    db = Database(tmp_path / "f.sqlite", "t", clock=clock, plan=Plan(gold_every=2))
    db.add_items([Item(str(i), {"text": f"text {i}"}) for i in range(9)])
    db.add_gold([gold_item(0)])
    held = {}
    for name in ("a", "b"):
        while (assignment := db.next(name, "annotation", 4)).item.id not in read_database(
            db.path, "t"
        ).hidden:
            submit(db, assignment, next(NUMBERS))
        held[name] = assignment
    clock.now += 1e6
    for name, assignment in held.items():
        assert db.next(name, "annotation", 4).id == assignment.id
    db.close()


@pytest.mark.parametrize("ordinary, gold", [(0, 0), (1, 0), (18, 2), (30, 9), (7, 1)])
def test_the_length_counts_every_item(ordinary, gold):
    plan = Plan(gold_every=3, repeat_every=5)
    for seed in range(5):
        length = items_to_come(seed, plan, ordinary, gold)
        kinds = [slot(seed, plan, position) for position in range(length)]
        assert length >= ordinary + min(gold, kinds.count("gold"))
        assert items_to_come(seed, Plan(gold_every=3), ordinary, 0) == ordinary


def test_hidden_items_are_no_items_of_the_study(db):
    all_given(db, "anna")
    assert [item.id for item in db.items()] == [str(i) for i in range(40)]
    study = read_database(db.path, "t")
    assert len(study.items) == len(study.submissions) == 40
    assert len(study.all_items) == 40 + len(study.hidden) == len(study.all_submissions)
    assert len(study.gold) == 3 and len(study.gold) + len(study.repeats) == len(study.hidden)
    assert db.add_gold([gold_item(0)]) == 0
    with pytest.raises(UserError, match="'gold 0' is already in the database with other texts"):
        db.add_gold([(Item("gold 0", {"text": "another"}), ["annotation"])])


# ---- a study on the server -----------------------------------------------------------------------


def rows(count, name, **more):
    texts = {**ITEM, **more}
    return [{**texts, "id": f"{name}{i}", "question": f"{name} {i}?"} for i in range(count)]


def items_of(row_list):
    return [Item(row["id"], {k: v for k, v in row.items() if k != "id"}) for row in row_list]


def shape(value):
    """The keys and types of a JSON value."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shape(entry) for entry in value]
    return type(value).__name__


def test_nothing_in_the_api_tells_hidden_items_from_others(tmp_path, capsys):
    gold = rows(3, "g", feedback=FEEDBACK, preference=[1, 1, 1, 0, 0, 2])
    write_json(tmp_path / "gold.json", gold)
    write_json(tmp_path / "items.json", rows(20, "i", source="a key that gold rows lack"))
    settings = {"gold": tmp_path / "gold.json", "gold_every": 4, "repeat": 0.2}
    with serving(tmp_path, items=tmp_path / "items.json", **settings) as server:
        client = Client(server.port, "anna")
        seen = []
        texts = set()
        for _ in range(100):
            status, answer = client.call("POST", "/api/next", {"page": "annotation"})
            given = answer["assignment"]
            if given is None:
                break
            assert given["item"]["id"] == str(given["id"])
            texts.add(json.dumps(answer) + "\n")
            seen.append(answer | {"assignment": given | {"lease_until": 0.0}})
            body = client.submission(given)
            assert client.call("POST", "/api/submissions", body)[0] == 201
        listed = client.call("GET", "/api/assignments?page=annotation")[1]["assignments"]
    assert [entry["item"] for entry in listed] == [str(entry["id"]) for entry in listed]
    hidden = read_database(server.db, "qa_feedback").hidden
    kinds = [check.kind for check in hidden.values()]
    assert kinds.count("gold") == 3 and kinds.count("repeat") >= 2
    assert len(seen) == 20 + len(hidden)
    assert [answer["done"] for answer in seen] == list(range(len(seen)))
    assert {answer["total"] for answer in seen} == {len(seen)}
    assert all(shape(answer) == shape(seen[0]) for answer in seen)
    for secret in [*hidden, "gold 0", "g0", "repeat", 'feedback"', "a key that"]:
        assert not any(f'"{secret}' in text for text in texts), secret
    # the programs
    out = tmp_path / "out.json"
    values = {"task": "qa_feedback", "db": str(server.db), "out": str(out), "pages": "annotation"}
    assert export.export(export.FeedbackExportSettings(**values)) == 20
    repeats = kinds.count("repeat")
    text = f"left out 3 gold items and {repeats} repeated items"
    assert text in capsys.readouterr().out
    lines_path = tmp_path / "all.jsonl"
    write_submissions(
        SubmissionsSettings(task="qa_feedback", db=str(server.db), out=str(lines_path))
    )
    lines = [json.loads(line) for line in lines_path.read_text().splitlines()]
    checked = [(line["item"], line["check"]) for line in lines if "check" in line]
    assert sorted(item for item, kind in checked if kind == "gold") == ["g0", "g1", "g2"]
    assert all(item.startswith("i") for item, kind in checked if kind == "repeat")
    report = write_report(ReliabilitySettings(task="qa_feedback", db=str(server.db)))
    anna = report.annotators["anna"]["annotation"]
    assert (report.right, anna.items, anna.accuracy, anna.consistency) == ("gold", 3, 1.0, 1.0)
    assert anna.repeated_labels >= repeats


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"question": "i 0?", "feedback": FEEDBACK}, "has the texts of item 'i0' of the study"),
        ({}, "gold item 'g0' has no judgement"),
    ],
)
def test_wrong_gold_files_are_refused(tmp_path, changes, message):
    write_json(tmp_path / "gold.json", [{**rows(1, "g")[0], **changes}])
    study = items_of(rows(1, "i"))
    with pytest.raises(UserError, match=message):
        _gold_items(QA, study, str(tmp_path / "gold.json"))


def test_new_items_with_the_texts_of_gold_items_are_refused(tmp_path):
    database = Database(tmp_path / "f.sqlite", "qa_feedback")
    (gold,) = rows(1, "g")
    files = {
        "items": rows(2, "i"),
        "gold": [{**gold, "feedback": FEEDBACK}],
        "later": [*rows(3, "i"), {**gold, "id": "new"}],
    }
    for name, content in files.items():
        write_json(tmp_path / name, content)
    first = {"items": str(tmp_path / "items"), "gold": str(tmp_path / "gold")}
    _add_items(QA, database, ServeSettings(task="qa_feedback", **first))
    _add_items(QA, database, ServeSettings(task="qa_feedback", **first))
    later = ServeSettings(task="qa_feedback", items=str(tmp_path / "later"))
    with pytest.raises(UserError, match="item 'new' has the texts of gold item 'g0'"):
        _add_items(QA, database, later)
    assert len(database.items()) == 2
    database.close()


# ---- suggestions and adjudication ----------------------------------------------------------------


def suggested(source="rel_rm"):
    span = {"type": "Irrelevant", "start": 4, "end": 11, "score": 0.9}
    return [{**span, "explanation": "", "source": source}]


def test_items_with_suggestions_can_be_submitted_beside_hidden_items(tmp_path):
    """Half of the items of each kind show suggestions; the page decides what it was sent."""
    half = []
    for number, row in enumerate([*rows(20, "i"), *rows(4, "g", feedback=FEEDBACK)]):
        half.append({**row, "suggestions": suggested(), "suggestions_shown": number % 2 == 0})
    write_json(tmp_path / "items.json", half[:20])
    write_json(tmp_path / "gold.json", half[20:])
    settings = {"gold": tmp_path / "gold.json", "gold_every": 4, "repeat": 0.2}
    shapes = set()
    shown = []
    with serving(tmp_path, items=tmp_path / "items.json", **settings) as server:
        client = Client(server.port, "anna")
        while given := client.next():
            item = given["item"]
            body = client.submission(given)
            if "suggestions" in item:
                assert item["suggestions"] == suggested()
                status, answer = client.call("POST", "/api/submissions", body)
                assert status == 422 and "is not decided" in json.dumps(answer)
                body["doc"]["suggestions"] = [{"index": 0, "verdict": "rejected"}]
            assert client.call("POST", "/api/submissions", body)[0] == 201
            shapes.add(json.dumps(shape(item)))
            shown.append("suggestions" in item)
        study = read_database(server.db, "qa_feedback")
    assert len(shapes) == 2  # with shown suggestions and without
    gold = [study.hidden[item.id].original for item in study.gold]
    assert sorted(gold) == ["g0", "g1", "g2", "g3"] and study.repeats
    assert len(shown) == 24 + len(study.repeats)
    by_item = {item.id: item.row["suggestions_shown"] for item in study.all_items}
    assert shown == [by_item[entry.item] for entry in study.all_submissions]
    hidden_shown = {by_item[item] for item in study.hidden}
    assert hidden_shown == {True, False}


def with_suggestions(name, **more):
    return rows(1, name, suggestions=suggested(), **more)


@pytest.mark.parametrize(
    "study, gold, message",
    [
        (with_suggestions("i"), rows(1, "g"), "'g0' has no suggestions, but items of the study"),
        (rows(1, "i"), with_suggestions("g"), "'g0' shows suggestions, but no item"),
        (
            with_suggestions("i"),
            with_suggestions("g", suggestions_shown=False),
            "'g0' shows no suggestions, but every item",
        ),
        (
            with_suggestions("i"),
            rows(1, "g", suggestions=suggested("gold_rm")),
            "'g0' shows a suggestion of 'gold_rm'",
        ),
        (rows(1, "i", annotations=[], shared={}), rows(1, "g"), "without gold="),
    ],
)
def test_gold_items_that_could_be_told_from_others_are_refused(tmp_path, study, gold, message):
    assert message in str(gold_tell(QA.schema, items_of(study), items_of(gold)))
    gold[0]["feedback"] = FEEDBACK
    write_json(tmp_path / "items.json", study)
    write_json(tmp_path / "gold.json", gold)
    database = Database(tmp_path / "f.sqlite", "qa_feedback")
    paths = {"items": str(tmp_path / "items.json"), "gold": str(tmp_path / "gold.json")}
    settings = ServeSettings(task="qa_feedback", db=str(database.path), **paths)
    with pytest.raises(UserError, match="annotators could tell gold items from others"):
        _add_items(QA, database, settings)
    assert not database.items() and not database.gold_items()
    # nor can such items be added to the gold items of an earlier start
    database.add_gold([(item, ["annotation"]) for item in items_of(gold)])
    with pytest.raises(UserError, match="annotators could tell gold items from others"):
        _add_items(QA, database, settings.model_copy(update={"gold": None}))
    database.close()


@pytest.mark.parametrize(
    "study, gold",
    [
        (rows(2, "i"), rows(2, "g")),
        (with_suggestions("i"), with_suggestions("g")),
        ([*with_suggestions("i"), *rows(1, "j")], with_suggestions("g", suggestions_shown=False)),
        (rows(1, "i", annotations=[], shared={}), []),
    ],
)
def test_gold_items_like_the_others_are_accepted(study, gold):
    assert gold_tell(QA.schema, items_of(study), items_of(gold)) is None


def test_repeats_of_items_to_adjudicate_show_their_annotations(tmp_path):
    annotation = {**FEEDBACK, "annotator": "anna"}
    decided = rows(12, "i", annotations=[annotation, annotation], shared=FEEDBACK)
    write_json(tmp_path / "items.json", decided)
    with serving(tmp_path, items=tmp_path / "items.json", repeat=0.5) as server:
        client = Client(server.port, "cleo")
        shapes = set()
        while given := client.next():
            assert given["item"]["annotations"] == [FEEDBACK, FEEDBACK]  # without names
            assert given["item"]["shared"] == FEEDBACK
            shapes.add(json.dumps(shape(given["item"])))
            assert client.call("POST", "/api/submissions", client.submission(given))[0] == 201
        assert len(shapes) == 1 and read_database(server.db, "qa_feedback").repeats
