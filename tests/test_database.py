"""The server's database: assigned items, stored feedback, refusals."""

import sqlite3
import threading
import time

import pytest

from fgrlhf.base.errors import UserError
from interface_html.assignments import Receipt, RefusedError
from interface_html.database import Database
from interface_html.format import Item
from interface_html.stored import read_database

DOC = {"errors": [], "missing-info": [], "corrected-prediction": "x", "no-error": True}


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def db(tmp_path, clock):
    database = Database(tmp_path / "f.sqlite", "t", per_item=2, lease_seconds=60, clock=clock)
    database.add_items([Item(str(i), {"text": f"text {i} 😀"}) for i in range(3)])
    yield database
    database.close()


def submit(db, given, number=0, doc=DOC, **options):
    return db.submit(given, f"{number:032x}", doc, Receipt(1.5, "1"), **options)


def test_an_item_goes_to_so_many_annotators_and_to_none_twice(db):
    given = {name: [] for name in "abc"}
    number = 0
    for _ in range(4):
        for name in "abc":
            assignment = db.next(name, "annotation", 4)
            if assignment:
                given[name].append(assignment.item.id)
                submit(db, assignment, number := number + 1)
    assert all(len(set(items)) == len(items) for items in given.values())
    items = sorted(item for items in given.values() for item in items)
    assert items == ["0", "0", "1", "1", "2", "2"]
    assert db.next("d", "annotation", 4) is None
    assert db.next("d", "comparison", 4).item.id == "0"  # each page has its own annotators


def test_a_started_item_comes_back_with_its_order_and_draft(db):
    first = db.next("a", "comparison", 4)
    assert sorted(first.shown) == [0, 1, 2, 3]
    assert db.save_draft(first, 0, {"x": "😀"}) == 1
    again = db.next("a", "comparison", 4)
    assert (again.id, again.shown, again.draft) == (first.id, first.shown, (1, {"x": "😀"}))


def test_drafts_follow_each_other(db):
    assignment = db.next("a", "annotation", 4)
    db.save_draft(assignment, 0, {})
    with pytest.raises(RefusedError, match="another window"):
        db.save_draft(assignment, 0, {})
    assert db.save_draft(assignment, 1, {}) == 2


def test_a_lease_that_ran_out_gives_the_item_to_others(db, clock):
    slow = db.next("slow", "annotation", 4)
    clock.now += 61
    for number, name in enumerate("ab", 1):
        assignment = db.next(name, "annotation", 4)
        assert assignment.item.id == "0"
        submit(db, assignment, number)
    assert not db.renew(slow)  # the page shows that; late work counts as an extra judgement
    assert db.next("slow", "annotation", 4).item.id == "1"
    assert submit(db, slow, 9)
    assert db.assignment(slow.id, "slow").done
    annotators = [entry.annotator for entry in read_database(db.path, "t").submissions]
    assert annotators == ["a", "b", "slow"]


def test_a_lease_that_ran_out_unnoticed_costs_nothing(db, clock):
    slow = db.next("slow", "annotation", 4)
    clock.now += 1000
    assert db.next("slow", "annotation", 4).id == slow.id
    clock.now += 1000
    assert submit(db, slow)


def test_a_draft_renews_the_lease(db, clock):
    assignment = db.next("a", "annotation", 4)
    clock.now += 50
    db.save_draft(assignment, 0, {})
    assert db.assignment(assignment.id, "a").lease_until == clock.now + 60


def test_a_submission_counts_once_and_stays(db, tmp_path):
    assignment = db.next("a", "annotation", 4)
    assert submit(db, assignment) and not submit(db, assignment)
    with pytest.raises(RefusedError, match="another submission"):
        submit(db, assignment, doc={**DOC, "no-error": False})
    with pytest.raises(RefusedError, match="already submitted") as refused:
        submit(db, assignment, 1, {**DOC, "corrected-prediction": "y"})
    assert (refused.value.status, refused.value.details) == (409, {"submissions": 1})
    assert submit(db, assignment, 1, {**DOC, "corrected-prediction": "y"}, seen=1)
    assert submit(db, assignment, 2, {**DOC, "corrected-prediction": "z"}, confirmed=True)
    study = read_database(tmp_path / "f.sqlite", "t")
    assert len(study.items) == 3
    assert [entry.doc["corrected-prediction"] for entry in study.submissions] == ["x", "y", "z"]
    assert [entry.revision for entry in study.submissions] == [1, 2, 3]
    with pytest.raises(UserError, match="of the task t, not of u"):
        read_database(tmp_path / "f.sqlite", "u")


MARKS = [{"start": start, "end": start + 1, "error type": "x"} for start in (0, 2)]
SEEN = [{"seconds": 1.5, "share": 1.0}]


@pytest.mark.parametrize(
    "page, doc, equal, other",
    [
        ("annotation", {"errors": MARKS}, {"errors": MARKS[::-1]}, {"errors": MARKS[:1]}),
        ("comparison", {"preference": [1]}, {"preference": [1], "seen": SEEN}, {"preference": [0]}),
        ("rating", {"ratings": {"a": 1}}, {"ratings": {"a": 1}}, {"ratings": {"a": 2}}),
    ],
)
def test_an_unchanged_submission_is_no_revision(db, tmp_path, page, doc, equal, other):
    given = db.next("a", page, 2)
    assert submit(db, given, 1, doc)
    db.save_draft(given, 0, {"doc": other}, seen=1)
    db.skip(given, "unsure", "", seen=1)
    assert not submit(db, given, 2, equal, seen=1) and not submit(db, given, 3, equal)
    stored = db.assignment(given.id, "a")
    assert (stored.done, stored.skipped, stored.submissions) == (True, None, 1)
    # the page that sent the draft hears that it is out of date
    assert stored.draft == (3, {})
    with pytest.raises(RefusedError, match="based on revision 1"):
        db.save_draft(given, 1, {"doc": other}, seen=1)
    for number, receipt in ((4, Receipt(1.5, "2")), (5, Receipt(1.5, "2", None, "hash"))):
        assert db.submit(given, f"{number:032x}", equal, receipt, seen=number - 3)
    assert submit(db, given, 6, other, seen=3)
    study = read_database(tmp_path / "f.sqlite", "t")
    assert [entry.doc for entry in study.submissions] == [doc, equal, equal, other]


def test_nobody_sees_what_is_not_theirs(db):
    assignment = db.next("a", "annotation", 4)
    for number, name in ((assignment.id, "b"), (99, "a")):
        with pytest.raises(RefusedError) as error:
            db.assignment(number, name)
        assert error.value.status == 404


def test_tokens_are_kept_as_hashes_and_replaced(db, tmp_path):
    token = db.new_token("anna")
    assert db.annotator_of(token) == "anna" and db.annotator_of("other") is None
    assert token.encode() not in (tmp_path / "f.sqlite").read_bytes()
    newer = db.new_token("anna")
    assert db.annotator_of(token) is None and db.annotator_of(newer) == "anna"
    db.end_tokens()
    assert db.annotator_of(newer) is None and not db.has_token("anna")
    db.close()
    again = Database(tmp_path / "f.sqlite", "t")
    assert again.annotator_of(newer) is None
    again.close()


def test_items_are_added_once(db):
    assert db.add_items([Item("2", {"text": "text 2 😀"}), Item("3", {"text": "new"})]) == 1
    with pytest.raises(UserError, match="with another text: give the new item another id"):
        db.add_items([Item("9", {"text": ""}), Item("0", {"text": "changed"})])
    with pytest.raises(UserError, match="with another feedback and note: "):
        db.add_items([Item("3", {"text": "new", "feedback": {}, "note": 1})])
    db.add_items([Item("4", {"text": "a", "note": 1})])
    assert db.add_items([Item("4", {"note": 1, "text": "a"})]) == 0
    assert [item.id for item in db.items()] == ["0", "1", "2", "3", "4"]


def test_one_server_at_a_time_and_of_one_task(db, tmp_path):
    with pytest.raises(UserError, match="another server"):
        Database(tmp_path / "f.sqlite", "t")
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "f.sqlite")
    with pytest.raises(UserError, match="another server"):
        Database(tmp_path / "link.sqlite", "t")
    with pytest.raises(UserError, match="is no file"):
        Database(":memory:", "t")
    db.close()
    with pytest.raises(UserError, match="of the task t, not of u"):
        Database(tmp_path / "f.sqlite", "u")
    (tmp_path / "text.sqlite").write_text("no database, just text of some length" * 100)
    with pytest.raises(UserError, match="cannot be used"):
        Database(tmp_path / "text.sqlite", "t")
    with sqlite3.connect(tmp_path / "music.sqlite") as other:
        other.execute("CREATE TABLE songs(title TEXT)")
    before = (tmp_path / "music.sqlite").read_bytes()
    with pytest.raises(UserError, match="belongs to another program .its tables: songs"):
        Database(tmp_path / "music.sqlite", "t")
    assert (tmp_path / "music.sqlite").read_bytes() == before


def test_a_full_disk_is_an_error_and_nothing_half_is_kept(db, tmp_path):
    assignment = db.next("a", "annotation", 4)
    # a full disk, simulated by SQLite's limit on pages
    db._connection.execute("PRAGMA max_page_count=1")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        submit(db, assignment, doc={**DOC, "corrected-prediction": "x" * 100_000})
    db._connection.execute("PRAGMA max_page_count=100000")
    assert not db.assignment(assignment.id, "a").done
    assert submit(db, assignment)


def together(db, *works):
    """Run `works` while the connection is busy; returns their results and the commits."""
    result, commits = [None] * len(works), []

    def run(i):
        try:
            result[i] = works[i]()
        except Exception as error:
            result[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(works))]
    db._connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    with db._commits.lock:
        for thread in threads:
            thread.start()
        while len(db._commits.waiting) < len(works):
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    return result, len(commits)


def test_those_who_wait_together_are_committed_together(db):
    given = [db.next(name, "annotation", 4) for name in "abcdef"]
    bad = db.next("g", "comparison", 4)
    db.save_draft(bad, 0, {})
    works = [lambda i=i, one=one: submit(db, one, i) for i, one in enumerate(given)]
    result, commits = together(
        db, *works, lambda: db.save_draft(bad, 0, {}), lambda: db.write(lambda sql: 1 / 0)
    )
    assert result[:6] == [True] * 6 and commits == 1
    assert isinstance(result[6], RefusedError) and isinstance(result[7], ZeroDivisionError)
    assert len(read_database(db.path, "t").submissions) == 6


def test_where_the_disk_is_too_full_for_all_the_others_are_kept(db):
    given = [db.next(name, "annotation", 4) for name in "abc"]
    db._connection.execute("PRAGMA max_page_count=1")
    works = [lambda i=i, one=one: submit(db, one, i) for i, one in enumerate(given)]
    works[1] = lambda: submit(db, given[1], 1, {**DOC, "corrected-prediction": "x" * 100_000})
    result, commits = together(db, *works)
    assert [result[0], result[2], commits] == [True, True, 2] and "full" in str(result[1])
    assert sorted(one.annotator for one in read_database(db.path, "t").submissions) == ["a", "c"]


def test_settings_of_the_connection(db):
    assert db._connection.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
    assert db._connection.execute("PRAGMA synchronous").fetchone() == (3,)


def test_a_database_of_another_version_is_refused(db):
    db.close()
    with sqlite3.connect(db.path) as sql:
        sql.execute("PRAGMA user_version=4")
    sql.close()
    for _ in range(2):  # the refusal releases the file
        with pytest.raises(UserError, match="has version 4, and this program reads version 5"):
            Database(db.path, "t")
    with pytest.raises(UserError, match="has version 4"):
        read_database(db.path, "t")


def test_own_assignments_and_their_submissions(db):
    first = db.next("a", "annotation", 4)
    submit(db, first)
    second = db.next("a", "annotation", 4)
    assert db.own_assignments("a", "annotation") == [
        (first.id, first.item.id, True),
        (second.id, second.item.id, False),
    ]
    assert db.own_assignments("b", "annotation") == db.own_assignments("a", "comparison") == []
    again = db.assignment(first.id, "a")
    assert (again.submissions, again.submitted, again.draft) == (1, DOC, None)
    assert (second.submissions, second.submitted) == (0, None)


def test_a_submission_ends_the_draft(db):
    given = db.next("a", "annotation", 4)
    db.save_draft(given, 0, {"doc": 1})
    submit(db, given)
    assert db.assignment(given.id, "a").draft is None
    assert db.save_draft(given, 0, {"doc": 2}, seen=1) == 1  # of the revision


def test_a_draft_from_before_a_submission_is_refused(db):
    given = db.next("a", "annotation", 4)
    submit(db, given)
    with pytest.raises(RefusedError, match="older than a submission") as error:
        db.save_draft(given, 0, {"doc": "late"})
    assert error.value.status == 409
    assert db.assignment(given.id, "a").draft is None
