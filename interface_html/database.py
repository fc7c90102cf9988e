"""The server's storage: one SQLite file with one writing connection.

Committed data survives a kill and a power cut (journal_mode=TRUNCATE, synchronous=EXTRA).
Submissions are never changed or removed; the latest of an assignment counts. A submission ends the
draft of its assignment. On each page, `per_item` annotators get an item: those who have submitted
it and those who hold a lease on it. Work that comes after its lease is accepted too, as an extra
judgement. A skipped item is closed for its annotator and goes to another one. Requests that wait
for the disk at the same time share one commit.
"""

import fcntl
import hashlib
import json
import os
import random
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError
from interface_html import checks
from interface_html.assignments import Assignment, Receipt, RefusedError
from interface_html.connections import SharedCommits
from interface_html.format import Item
from interface_html.stored import create_tables, other_task, stored_spellings
from interface_html.submitted import KEY_OF_PAGE, essence, is_given_on

FREE_ITEM = f"SELECT id FROM items WHERE {checks.IS_FREE} ORDER BY position LIMIT 1"


class Database:
    """The storage of a server. Opens the file, or creates it.

    Args:
      path: the file.
      task: the name of the task; a file of another task is refused.
      per_item: number of annotators for each item, on each page.
      lease_seconds: after this time without activity an item goes to other annotators.
      clock: returns the time in seconds.
      plan: how often hidden gold items and repeated items are given.

    Attributes:
      study: identifies the file, so that browsers tell studies at one address apart.

    Raises:
      UserError: another server uses the file, it belongs to another task or program, or it is not a
        database.
    """

    def __init__(
        self,
        path: str | Path,
        task: str,
        per_item: int = 1,
        lease_seconds: float = 3600,
        clock: Callable[[], float] = time.time,
        plan: checks.Plan = checks.DEFAULT_PLAN,
    ):
        if str(path).startswith((":memory:", "file:")):
            raise UserError(f"db={path} is no file, so a study in it would be lost: name a file")
        self.path = Path(os.path.realpath(path))  # two names of a file have one lock
        self.per_item = per_item
        self.lease_seconds = lease_seconds
        self.clock = clock
        self.plan = plan
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock_file = open(f"{self.path}.lock", "w")  # noqa: SIM115 (open until `close`)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise UserError(
                f"{path} is in use by another server. Stop that server, or set db=... to another"
                " file"
            ) from None
        try:
            self._connection = sqlite3.connect(
                self.path, timeout=30, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=TRUNCATE")
            self._connection.execute("PRAGMA synchronous=EXTRA")
            self._connection.execute("PRAGMA foreign_keys=ON")
            self._commits = SharedCommits(self._connection)
            stored_task = self.write(lambda sql: create_tables(sql, task))
            names = self._connection.execute("SELECT token_sha256, name FROM annotators")
            (self.study,) = self._connection.execute(
                "SELECT value FROM meta WHERE key='study'"
            ).fetchone()
            self._spellings = stored_spellings(self._connection)
            self._names: dict[str, str] = {
                digest: self._spellings.of(name) for digest, name in names.fetchall()
            }
        except sqlite3.Error as error:
            self._lock_file.close()
            raise UserError(f"{path} cannot be used as a database: {error}") from None
        except UserError:
            self.close()
            raise
        if stored_task != task:
            self.close()
            raise other_task(path, stored_task, task)

    def close(self) -> None:
        self._connection.close()
        self._lock_file.close()

    def write(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run `work(connection)`; its result, once everything it wrote is on the disk.

        `work` may run twice, so it must change nothing but the database: see `SharedCommits`.
        """
        return self._commits.write(work)

    # ---- items and annotators --------------------------------------------------------------------

    def add_items(self, items: Sequence[Item]) -> int:
        """Add the items whose id is new. Returns their number.

        Raises:
          UserError: an item with the same id and another content is already stored.
        """

        def add(sql: sqlite3.Connection) -> int:
            added = 0
            (last,) = sql.execute("SELECT COALESCE(MAX(position), -1) FROM items").fetchone()
            for item in items:
                row = json.dumps(item.row)
                stored = sql.execute("SELECT row FROM items WHERE id=?", (item.id,)).fetchone()
                keys = _differing_keys(json.loads(stored[0]), json.loads(row)) if stored else []
                if keys:
                    raise UserError(
                        f"item {item.id!r} is already in {self.path}, with another"
                        f" {' and '.join(keys)}: give the new item another id, or serve it with"
                        " another db=..."
                    )
                if not stored:
                    added += 1
                    sql.execute("INSERT INTO items VALUES(?, ?, ?)", (item.id, last + added, row))
                for page in KEY_OF_PAGE:
                    if not is_given_on(item.row, page):
                        sql.execute("INSERT OR IGNORE INTO withheld VALUES(?, ?)", (item.id, page))
            return added

        return self.write(add)

    def add_gold(self, items: Sequence[tuple[Item, Sequence[str]]]) -> int:
        """Add gold items, each with its judged pages: see checks.py. Returns their number."""
        return self.write(lambda sql: checks.add_gold(sql, items))

    @property
    def has_checks(self) -> bool:
        """Whether annotators may get hidden items."""
        with self._commits.lock:
            stored = self._connection.execute("SELECT 1 FROM checks LIMIT 1").fetchone()
        return stored is not None or self.plan.repeat_every is not None

    def items(self) -> list[Item]:
        """The items of the study, without hidden ones."""
        with self._commits.lock:
            rows = self._connection.execute(
                "SELECT id, row FROM items WHERE id NOT IN (SELECT item FROM checks) ORDER BY"
                " position"
            ).fetchall()
        return [Item(name, json.loads(row)) for name, row in rows]

    def gold_items(self) -> list[Item]:
        """The gold items, with the ids of their file."""
        with self._commits.lock:
            rows = self._connection.execute(
                "SELECT c.original, i.row FROM checks c JOIN items i ON i.id=c.item WHERE"
                " c.kind='gold'"
            ).fetchall()
        return [Item(name, json.loads(row)) for name, row in rows]

    def new_token(self, annotator: str) -> str:
        """A new token for an annotator, which replaces the old one. Only hashes are stored."""
        token = secrets.token_urlsafe(24)
        annotator = self.spelling(annotator)
        row = (annotator, _sha(token))

        def replace(sql: sqlite3.Connection) -> None:
            for (name,) in sql.execute("SELECT name FROM annotators").fetchall():
                if self.spelling(name) == annotator:
                    sql.execute("DELETE FROM annotators WHERE name=?", (name,))
            sql.execute("INSERT INTO annotators VALUES(?, ?)", row)

        self.write(replace)
        others = {digest: name for digest, name in self._names.items() if name != annotator}
        self._names = {**others, row[1]: annotator}
        return token

    def spelling(self, name: str) -> str:
        """An annotator's name as it was first written: see `fgrlhf.data.names.name_key`."""
        return self._spellings.of(name)

    def submission_count(self, annotator: str) -> int:
        """The number of items that an annotator has submitted, on all pages."""
        query = "SELECT COUNT(*) FROM assignments WHERE annotator=? AND done"
        with self._commits.lock:
            return self._connection.execute(query, (annotator,)).fetchone()[0]

    def is_known(self, annotator: str) -> bool:
        """Whether an annotator was given an item, on any page."""
        query = "SELECT 1 FROM assignments WHERE annotator=? LIMIT 1"
        with self._commits.lock:
            return self._connection.execute(query, (annotator,)).fetchone() is not None

    def end_tokens(self) -> None:
        """End all links, also those of annotators who no longer take part."""
        self.write(lambda sql: sql.execute("DELETE FROM annotators"))
        self._names = {}

    def has_token(self, annotator: str) -> bool:
        return self.spelling(annotator) in self._names.values()

    @property
    def has_tokens(self) -> bool:
        """Whether annotators of this study identify themselves by tokens."""
        return bool(self._names)

    def annotator_of(self, token: str) -> str | None:
        return self._names.get(_sha(token))

    # ---- assignments -----------------------------------------------------------------------------

    def next(self, annotator: str, page: str, outputs: int) -> Assignment | None:
        """The next item for an annotator, or None.

        Unfinished items of the annotator come first, then the first item that needs more annotators
        and that this one never had.

        Args:
          annotator: the annotator's name.
          page: the name of a page.
          outputs: number of outputs of an item.
        """
        return self.write(lambda sql: self._next(sql, annotator, page, outputs, self.clock()))

    def _next(
        self, sql: sqlite3.Connection, annotator: str, page: str, outputs: int, now: float
    ) -> Assignment | None:
        # no lease ends later, unless the clock was set back or leases were longer
        latest = {"end": now + self.lease_seconds}
        sql.execute("UPDATE assignments SET lease_until=:end WHERE lease_until>:end", latest)
        unfinished = sql.execute(
            "SELECT id, item, lease_until FROM assignments WHERE annotator=? AND page=? AND done=0"
            " AND skipped IS NULL ORDER BY id",
            (annotator, page),
        ).fetchall()
        for number, item, until in unfinished:
            if until > now or self._taken(sql, item, page, now) < self.per_item:
                self._lease(sql, number, now)
                return self._read(sql, number)
        check = checks.next_check(sql, self.plan, annotator, page)
        free = (check,) if check is not None else self._free(sql, annotator, page, now)
        if free is None:
            return None
        shown = list(range(outputs))
        random.SystemRandom().shuffle(shown)
        sql.execute(
            "INSERT INTO assignments(item, annotator, page, shown, lease_until) VALUES(?, ?, ?,"
            " ?, ?)",
            (free[0], annotator, page, json.dumps(shown), now + self.lease_seconds),
        )
        (number,) = sql.execute("SELECT last_insert_rowid()").fetchone()
        return self._read(sql, number)

    def _free(
        self, sql: sqlite3.Connection, annotator: str, page: str, now: float
    ) -> tuple[str] | None:
        """The first item of the study that needs more annotators and that this one never had."""
        return sql.execute(
            FREE_ITEM,
            {"page": page, "annotator": annotator, "now": now, "per_item": self.per_item},
        ).fetchone()

    def _lease(self, sql: sqlite3.Connection, number: int, now: float) -> None:
        sql.execute(
            "UPDATE assignments SET lease_until=? WHERE id=?", (now + self.lease_seconds, number)
        )

    @staticmethod
    def _taken(sql: sqlite3.Connection, item: str, page: str, now: float) -> int:
        query = (
            "SELECT COUNT(*) FROM assignments WHERE page=? AND item=? AND (done OR lease_until>?)"
            " AND item NOT IN (SELECT item FROM checks)"  # any number of annotators get these
        )
        return sql.execute(query, (page, item, now)).fetchone()[0]

    @staticmethod
    def _read(sql: sqlite3.Connection, number: int) -> Assignment:
        values = sql.execute(
            "SELECT a.item, i.row, a.annotator, a.page, a.shown, a.done, a.lease_until, d.revision,"
            " d.state, a.skipped FROM assignments a JOIN items i ON i.id=a.item LEFT JOIN drafts d"
            " ON d.assignment=a.id WHERE a.id=?",
            (number,),
        ).fetchone()
        if values is None:
            raise RefusedError(404, "there is no such assignment")
        item, row, annotator, page, shown, done, lease, revision, state, skipped = values
        count, last = sql.execute(
            "SELECT COUNT(*), (SELECT doc FROM submissions WHERE assignment=:number ORDER BY number"
            " DESC LIMIT 1) FROM submissions WHERE assignment=:number",
            {"number": number},
        ).fetchone()
        return Assignment(
            id=number,
            item=Item(item, json.loads(row)),
            annotator=annotator,
            page=page,
            shown=json.loads(shown),
            done=bool(done),
            lease_until=lease,
            draft=None if revision is None else (revision, json.loads(state)),
            submissions=count,
            submitted=None if last is None else json.loads(last),
            skipped=None if skipped is None else _reason(json.loads(skipped)),
        )

    def assignment(self, number: int, annotator: str) -> Assignment:
        """An assignment of this annotator. Raises `RefusedError` (404) for any other."""
        with self._commits.lock:
            assignment = self._read(self._connection, number)
        if assignment.annotator != annotator:
            raise RefusedError(404, "there is no such assignment")
        return assignment

    def own_assignments(self, annotator: str, page: str) -> list[tuple[int, str, bool]]:
        """The annotator's assignments, oldest first: (number, id of the item, whether done)."""
        query = "SELECT id, item, done FROM assignments WHERE annotator=? AND page=? ORDER BY id"
        with self._commits.lock:
            rows = self._connection.execute(query, (annotator, page)).fetchall()
        return [(number, item, bool(done)) for number, item, done in rows]

    def own_skips(self, annotator: str, page: str) -> dict[int, dict[str, str]]:
        """The skips of the annotator, {reason, text}, by the number of the assignment."""
        query = (
            "SELECT id, skipped FROM assignments WHERE annotator=? AND page=? AND skipped IS NOT"
            " NULL"
        )
        with self._commits.lock:
            rows = self._connection.execute(query, (annotator, page)).fetchall()
        return {number: _reason(json.loads(skipped)) for number, skipped in rows}

    def renew(self, assignment: Assignment) -> bool:
        """Renew the lease. False if it has ended and others have taken the item."""
        return self.write(lambda sql: self._renew(sql, assignment, self.clock()))

    def progress(self, annotator: str, page: str) -> tuple[int, int]:
        """The number of items that the annotator has submitted, and of these and all they can get.

        Hidden items count in both, like others.
        """
        with self._commits.lock:
            query = "SELECT COUNT(*) FROM assignments WHERE annotator=? AND page=? AND done"
            done = self._connection.execute(query, (annotator, page)).fetchone()[0]
            total = checks.expected_items(
                self._connection, self.plan, annotator, page, self.per_item, self.clock()
            )
        return done, total

    # ---- work ------------------------------------------------------------------------------------

    def save_draft(self, assignment: Assignment, revision: int, state: Any, seen: int = 0) -> int:
        """Store a draft and return its revision.

        Args:
          assignment: the assignment that the draft belongs to.
          revision: the revision that the draft is based on; 0 for the first draft since the latest
            submission.
          state: the state of the page.
          seen: the number of this assignment's submissions that the page knows.

        Raises:
          RefusedError: (409) another draft was stored after that revision, or the page does not
            know the latest submission.
        """
        text = json.dumps(state)

        def save(sql: sqlite3.Connection) -> int:
            if self._submissions(sql, assignment) > seen:
                raise RefusedError(
                    409,
                    "this draft is older than a submission, from another window or before a"
                    " reload; reload the page to see the submission",
                )
            stored = sql.execute(
                "SELECT revision FROM drafts WHERE assignment=?", (assignment.id,)
            ).fetchone()
            last = stored[0] if stored else 0
            if revision != last:
                raise RefusedError(
                    409,
                    f"this draft is based on revision {revision}, but the latest is {last}: another"
                    " window changed it; reload the page to continue from there",
                )
            sql.execute(
                "INSERT OR REPLACE INTO drafts VALUES(?, ?, ?)", (assignment.id, last + 1, text)
            )
            self._renew(sql, assignment, self.clock())
            return last + 1

        return self.write(save)

    def _renew(self, sql: sqlite3.Connection, assignment: Assignment, now: float) -> bool:
        done, until, skipped = sql.execute(
            "SELECT done, lease_until, skipped FROM assignments WHERE id=?", (assignment.id,)
        ).fetchone()
        if done or skipped is not None:
            return True
        taken = self._taken(sql, assignment.item.id, assignment.page, now)
        if until <= now and taken >= self.per_item:
            return False
        self._lease(sql, assignment.id, now)
        return True

    def is_held(self, assignment: Assignment) -> bool:
        """Whether the annotator holds the item: others do not get it."""
        query = "SELECT done OR lease_until > ? FROM assignments WHERE id=?"
        with self._commits.lock:
            (held,) = self._connection.execute(query, (self.clock(), assignment.id)).fetchone()
        return bool(held)

    def skip(self, assignment: Assignment, reason: str, text: str, seen: int = 0) -> None:
        """Close the assignment as skipped: others get the item, and its submissions do not count.

        Args:
          assignment: what is skipped.
          reason: the name of a skip reason.
          text: the explanation; "" without one.
          seen: the number of this assignment's submissions that the page knows.

        Raises:
          RefusedError: (409) the page does not know the latest submission.
        """
        skipped = json.dumps({"reason": reason, "text": text, "created": self.clock()})

        def close(sql: sqlite3.Connection) -> None:
            if self._submissions(sql, assignment) > seen:
                raise RefusedError(
                    409,
                    "this item was submitted from another window: reload the page to see the"
                    " submission, then skip it",
                )
            query = "UPDATE assignments SET skipped=?, done=0, lease_until=0 WHERE id=?"
            sql.execute(query, (skipped, assignment.id))

        self.write(close)

    @staticmethod
    def _submissions(sql: sqlite3.Connection, assignment: Assignment) -> int:
        query = "SELECT COUNT(*) FROM submissions WHERE assignment=?"
        return sql.execute(query, (assignment.id,)).fetchone()[0]

    def reopen(self, assignment: Assignment) -> bool:
        """Undo a skip. False if others have taken the item: then work on it is an extra judgement.

        Earlier submissions of the assignment count again.
        """

        def undo(sql: sqlite3.Connection) -> bool:
            sql.execute(
                "UPDATE assignments SET skipped=NULL, done=EXISTS (SELECT 1 FROM submissions s"
                " WHERE s.assignment=assignments.id) WHERE id=?",
                (assignment.id,),
            )
            return self._renew(sql, assignment, self.clock())

        return self.write(undo)

    def submit(
        self,
        assignment: Assignment,
        uuid: str,
        doc: dict,
        receipt: Receipt,
        seen: int = 0,
        confirmed: bool = False,
    ) -> bool:
        """Add a submission. Returns True if it is new, False if it is already stored.

        One that is equal to the assignment's latest one, under the same guideline, is not stored:
        a new revision would make an adjudicator's decision stale. A draft is emptied, with a new
        revision, and a skip is undone.

        Args:
          assignment: what it belongs to. If its lease has ended, the submission is an extra one.
          uuid: names the submission; a repeated request has the same.
          doc: the annotation or comparison.
          receipt: the times and the guideline.
          seen: the number of this assignment's submissions that the page knows.
          confirmed: whether to add it although there are newer ones.

        Raises:
          RefusedError: (409) the uuid belongs to another submission, or `confirmed` is False and
            the assignment has submissions that the page does not know.
        """
        text = json.dumps(doc)
        digest = _sha(json.dumps([assignment.id, doc, receipt.guideline], sort_keys=True))

        def add(sql: sqlite3.Connection) -> bool:
            stored = sql.execute("SELECT digest FROM submissions WHERE uuid=?", (uuid,)).fetchone()
            if stored:
                if stored[0] != digest:
                    raise RefusedError(
                        409, "this uuid was used for another submission: generate a new one"
                    )
                return False
            if self._is_latest(sql, assignment, doc, receipt):
                query = "UPDATE assignments SET done=1, skipped=NULL WHERE id=?"
                sql.execute(query, (assignment.id,))
                query = "UPDATE drafts SET revision=revision+1, state='{}' WHERE assignment=?"
                sql.execute(query, (assignment.id,))
                return False
            count = self._submissions(sql, assignment)
            if count > seen and not confirmed:
                raise RefusedError(
                    409,
                    "this item was already submitted, from another window or before a reload; the"
                    " version shown here is older or different. Confirm to replace that"
                    " submission, or reload the page to see it",
                    submissions=count,
                )
            values = {
                "uuid": uuid,
                "digest": digest,
                "assignment": assignment.id,
                "doc": text,
                "seconds": receipt.seconds,
                "guideline": receipt.guideline,
                "created": self.clock(),
                "wall": receipt.wall,
                "guideline_sha256": receipt.guideline_sha256,
            }
            names = ", ".join(values)
            places = ", ".join(f":{name}" for name in values)
            sql.execute(f"INSERT INTO submissions({names}) VALUES({places})", values)
            query = "UPDATE assignments SET done=1, skipped=NULL WHERE id=?"
            sql.execute(query, (assignment.id,))
            sql.execute("DELETE FROM drafts WHERE assignment=?", (assignment.id,))
            return True

        return self.write(add)

    @staticmethod
    def _is_latest(
        sql: sqlite3.Connection, assignment: Assignment, doc: dict, receipt: Receipt
    ) -> bool:
        """Whether the latest submission of an assignment is the same, under the same guideline."""
        last = sql.execute(
            "SELECT doc, guideline, guideline_sha256 FROM submissions WHERE assignment=? ORDER BY"
            " number DESC LIMIT 1",
            (assignment.id,),
        ).fetchone()
        if last is None or last[1:] != (receipt.guideline, receipt.guideline_sha256):
            return False
        return essence(json.loads(last[0])) == essence(doc)

    def revision_of(self, uuid: str) -> int:
        """The place of a submission among those of its assignment: 1 for the first one.

        0 if it was not stored.
        """
        query = (
            "SELECT COUNT(*) FROM submissions s JOIN submissions o ON o.assignment=s.assignment"
            " AND o.number<=s.number WHERE s.uuid=?"
        )
        with self._commits.lock:
            return self._connection.execute(query, (uuid,)).fetchone()[0]


def _differing_keys(row: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The keys that only one of two rows has, or whose values differ."""
    keys = []
    for key in {**row, **other}:
        if key not in row or key not in other or row[key] != other[key]:
            keys.append(key)
    return keys


def _reason(skipped: dict[str, Any]) -> dict[str, str]:
    """A stored skip without its time."""
    return {key: skipped[key] for key in ("reason", "text")}


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
