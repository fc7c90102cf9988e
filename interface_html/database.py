"""Everything the server keeps, in one SQLite file behind one writing connection.

What is committed survives a kill and a power cut (journal_mode=TRUNCATE, synchronous=EXTRA).
Submissions are only ever added. An item is given to `per_item` annotators of a page: those who
submitted and those whose lease runs. Requests that wait for the disk at the same time are committed
together.
"""

import fcntl
import hashlib
import json
import random
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fgrlhf.errors import UserError
from interface_html.items import Item

TABLES = """
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items(id TEXT PRIMARY KEY, position INTEGER NOT NULL UNIQUE, row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS annotators(name TEXT PRIMARY KEY, token_sha256 TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS assignments(
  id INTEGER PRIMARY KEY, item TEXT NOT NULL REFERENCES items(id), annotator TEXT NOT NULL, page TEXT NOT NULL,
  shown TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0, lease_until REAL NOT NULL, UNIQUE(page, item, annotator));
CREATE INDEX IF NOT EXISTS by_annotator ON assignments(annotator, page, done);
CREATE INDEX IF NOT EXISTS by_item ON assignments(page, item, done, lease_until);
CREATE TABLE IF NOT EXISTS drafts(
  assignment INTEGER PRIMARY KEY REFERENCES assignments(id), revision INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS submissions(
  number INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE, digest TEXT NOT NULL,
  assignment INTEGER NOT NULL REFERENCES assignments(id), doc TEXT NOT NULL, seconds REAL NOT NULL,
  guideline TEXT NOT NULL, created REAL NOT NULL);
"""


class Refused(Exception):
    """A request that cannot be granted as things are: an HTTP status and the reason."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Assignment:
    """An item given to an annotator; `shown`: the answers' order on the page; `draft`: (revision,
    state) or None.
    """

    id: int
    item: Item
    annotator: str
    page: str
    shown: list[int]
    done: bool
    lease_until: float
    draft: tuple[int, Any] | None


@dataclass(frozen=True)
class Submission:
    item: str
    annotator: str
    page: str
    doc: dict
    shown: list[int]
    seconds: float
    guideline: str
    created: float


class _Job:
    """Work on the connection; once it is on the disk or refused, what it gave."""

    def __init__(self, work: Callable[[sqlite3.Connection], Any]):
        self.work, self.done = work, False
        self.value: Any = None
        self.error: BaseException | None = None


class Database:
    """Opens or makes the file. Raises `UserError` where another server has it, or it is of another
    task.
    """

    def __init__(
        self,
        path: str | Path,
        task: str,
        per_item: int = 1,
        lease_seconds: float = 3600,
        clock=time.time,
    ):
        self.path, self.per_item, self.lease_seconds, self.clock = (
            Path(path),
            per_item,
            lease_seconds,
            clock,
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()  # whoever has it may use the connection
        self._waiting: deque[_Job] = deque()
        self._only = open(f"{self.path}.lock", "w")  # noqa: SIM115 (held as long as the database is)
        try:
            fcntl.flock(self._only, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._only.close()
            raise UserError(
                f"{path} is in use by another server. Stop that one, or name another file: db=..."
            ) from None
        try:
            self._connection = sqlite3.connect(
                self.path, timeout=30, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=TRUNCATE")
            self._connection.execute("PRAGMA synchronous=EXTRA")
            self._connection.execute("PRAGMA foreign_keys=ON")
            found = self.write(lambda sql: self._open(sql, task))
            names = self._connection.execute("SELECT token_sha256, name FROM annotators")
            self._names: dict[str, str] = dict(names.fetchall())
        except sqlite3.Error as error:
            self._only.close()
            raise UserError(f"{path} cannot be used as a database: {error}") from None
        if found != task:
            self.close()
            raise UserError(
                f"{path} holds feedback of the task {found}, not of {task}: name another file with"
                " db=..."
            )

    def close(self) -> None:
        self._connection.close()
        self._only.close()

    @staticmethod
    def _open(sql: sqlite3.Connection, task: str) -> str:
        for statement in TABLES.split(";\n"):
            sql.execute(statement)
        sql.execute("INSERT OR IGNORE INTO meta VALUES('task', ?)", (task,))
        return sql.execute("SELECT value FROM meta WHERE key='task'").fetchone()[0]

    def write(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """What `work(connection)` returns, once all that it wrote is on the disk.

        Whoever gets the lock commits for everybody who waits: one flush of the disk for all of
        them. What raises is undone alone. `work` may run twice (see `_commit`), so it may change
        nothing but the database.
        """
        mine = _Job(work)
        self._waiting.append(mine)
        with self._lock:
            if not mine.done:
                self._commit([self._waiting.popleft() for _ in range(len(self._waiting))])
        if mine.error is not None:
            raise mine.error
        return mine.value

    def _commit(self, jobs: Sequence[_Job]) -> None:
        """All in one transaction; where the storage refuses that, each in its own, so that one
        fails alone.
        """
        try:
            self._transaction(jobs)
        except sqlite3.Error as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._commit([job])
            else:
                jobs[0].error = error
        except (
            BaseException
        ) as error:  # an interrupt: nothing was committed, so nobody may think it was
            for job in jobs:
                job.error = error
            raise
        finally:
            for job in jobs:
                job.done = True

    def _transaction(self, jobs: Sequence[_Job]) -> None:
        sql = self._connection
        sql.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                sql.execute("SAVEPOINT job")
                try:
                    job.value, job.error = job.work(sql), None
                except sqlite3.Error:
                    raise
                except Exception as error:  # noqa: BLE001 (raised again in the caller's thread)
                    job.value, job.error = None, error
                    sql.execute("ROLLBACK TO job")
                sql.execute("RELEASE job")
            sql.execute("COMMIT")
        except BaseException:
            if sql.in_transaction:
                sql.execute("ROLLBACK")
            raise

    # ---- items and annotators --------------------------------------------------------------------

    def add_items(self, items: Sequence[Item]) -> int:
        """Add those that are not there; returns how many. `UserError` where an id is there with
        another text.
        """

        def add(sql: sqlite3.Connection) -> int:
            added = 0
            (last,) = sql.execute("SELECT COALESCE(MAX(position), -1) FROM items").fetchone()
            for item in items:
                row = json.dumps(item.row)
                there = sql.execute("SELECT row FROM items WHERE id=?", (item.id,)).fetchone()
                if there and there[0] != row:
                    raise UserError(
                        f"item {item.id!r} is in {self.path} with other texts: give the new one"
                        " another id"
                    )
                if not there:
                    added += 1
                    sql.execute("INSERT INTO items VALUES(?, ?, ?)", (item.id, last + added, row))
            return added

        return self.write(add)

    def items(self) -> list[Item]:
        with self._lock:
            rows = self._connection.execute(
                "SELECT id, row FROM items ORDER BY position"
            ).fetchall()
        return [Item(name, json.loads(row)) for name, row in rows]

    def new_token(self, annotator: str) -> str:
        """A fresh token for an annotator; an older one stops working. Only its hash is kept."""
        token = secrets.token_urlsafe(24)
        row = (annotator, _sha(token))
        self.write(lambda sql: sql.execute("INSERT OR REPLACE INTO annotators VALUES(?, ?)", row))
        others = {digest: name for digest, name in self._names.items() if name != annotator}
        self._names = {**others, row[1]: annotator}
        return token

    def annotator_of(self, token: str) -> str | None:
        return self._names.get(_sha(token))

    # ---- assignments -----------------------------------------------------------------------------

    def next(self, annotator: str, page: str, answers: int) -> Assignment | None:
        """What the annotator has begun, else the first item that still needs somebody and that they
        never had.
        """
        return self.write(lambda sql: self._next(sql, annotator, page, answers, self.clock()))

    def _next(self, sql, annotator: str, page: str, answers: int, now: float) -> Assignment | None:
        begun = sql.execute(
            "SELECT id, item, lease_until FROM assignments WHERE annotator=? AND page=? AND done=0"
            " ORDER BY id",
            (annotator, page),
        ).fetchall()
        for number, item, until in begun:
            if until > now or self._taken(sql, item, page, now) < self.per_item:
                self._lease(sql, number, now)
                return self._read(sql, number)
        free = sql.execute(
            "SELECT id FROM items WHERE NOT EXISTS (SELECT 1 FROM assignments a WHERE a.page=:page"
            " AND a.item=items.id AND a.annotator=:annotator) AND (SELECT COUNT(*) FROM assignments"
            " a WHERE a.page=:page AND a.item=items.id  AND (a.done OR a.lease_until>:now)) <"
            " :wanted ORDER BY position LIMIT 1",
            {"page": page, "annotator": annotator, "now": now, "wanted": self.per_item},
        ).fetchone()
        if free is None:
            return None
        shown = list(range(answers))
        random.SystemRandom().shuffle(shown)
        made = sql.execute(
            "INSERT INTO assignments(item, annotator, page, shown, lease_until) VALUES(?, ?, ?,"
            " ?, ?)",
            (free[0], annotator, page, json.dumps(shown), now + self.lease_seconds),
        )
        return self._read(sql, made.lastrowid)

    def _lease(self, sql: sqlite3.Connection, number: int, now: float) -> None:
        sql.execute(
            "UPDATE assignments SET lease_until=? WHERE id=?", (now + self.lease_seconds, number)
        )

    @staticmethod
    def _taken(sql: sqlite3.Connection, item: str, page: str, now: float) -> int:
        query = (
            "SELECT COUNT(*) FROM assignments WHERE page=? AND item=? AND (done OR lease_until>?)"
        )
        return sql.execute(query, (page, item, now)).fetchone()[0]

    @staticmethod
    def _read(sql: sqlite3.Connection, number: int) -> Assignment:
        found = sql.execute(
            "SELECT a.item, i.row, a.annotator, a.page, a.shown, a.done, a.lease_until, d.revision,"
            " d.state FROM assignments a JOIN items i ON i.id=a.item LEFT JOIN drafts d ON"
            " d.assignment=a.id WHERE a.id=?",
            (number,),
        ).fetchone()
        if found is None:
            raise Refused(404, "there is no such assignment")
        item, row, annotator, page, shown, done, lease, revision, state = found
        draft = None if revision is None else (revision, json.loads(state))
        return Assignment(
            number,
            Item(item, json.loads(row)),
            annotator,
            page,
            json.loads(shown),
            bool(done),
            lease,
            draft,
        )

    def assignment(self, number: int, annotator: str) -> Assignment:
        """One's own assignment; `Refused` (404) for any other."""
        with self._lock:
            found = self._read(self._connection, number)
        if found.annotator != annotator:
            raise Refused(404, "there is no such assignment")
        return found

    def progress(self, annotator: str, page: str) -> tuple[int, int]:
        """How many items the annotator is done with, and how many there are."""
        with self._lock:
            query = "SELECT COUNT(*) FROM assignments WHERE annotator=? AND page=? AND done"
            done = self._connection.execute(query, (annotator, page)).fetchone()[0]
            return done, self._connection.execute("SELECT COUNT(*) FROM items").fetchone()[0]

    # ---- work ------------------------------------------------------------------------------------

    def save_draft(self, assignment: Assignment, revision: int, state: Any) -> int:
        """Keep a draft made from revision `revision` (0: the first); returns its own.

        `Refused` (409) if `revision` is not the last.
        """

        def save(sql: sqlite3.Connection) -> int:
            found = sql.execute(
                "SELECT revision FROM drafts WHERE assignment=?", (assignment.id,)
            ).fetchone()
            last = found[0] if found else 0
            if revision != last:
                raise Refused(
                    409,
                    f"this draft was made from revision {revision}, the last is {last}: another"
                    " window changed it; reload to continue from there",
                )
            sql.execute(
                "INSERT OR REPLACE INTO drafts VALUES(?, ?, ?)", (assignment.id, last + 1, text)
            )
            self._renew(sql, assignment, self.clock())
            return last + 1

        text = json.dumps(state)
        return self.write(save)

    def _renew(self, sql: sqlite3.Connection, assignment: Assignment, now: float) -> None:
        (until,) = sql.execute(
            "SELECT lease_until FROM assignments WHERE id=?", (assignment.id,)
        ).fetchone()
        if (
            until > now
            or self._taken(sql, assignment.item.id, assignment.page, now) < self.per_item
        ):
            self._lease(sql, assignment.id, now)

    def submit(
        self, assignment: Assignment, uuid: str, doc: dict, seconds: float, guideline: str
    ) -> bool:
        """Add a submission; True if it is new, False if this very one is there already.

        `Refused` (409) where the uuid is there with something else, or the lease ran out and others
        took the item.
        """
        text = json.dumps(doc)
        digest = _sha(json.dumps([assignment.id, doc, guideline], sort_keys=True))

        def add(sql: sqlite3.Connection) -> bool:
            there = sql.execute("SELECT digest FROM submissions WHERE uuid=?", (uuid,)).fetchone()
            if there:
                if there[0] != digest:
                    raise Refused(409, "this uuid was used for another submission: make a new one")
                return False
            now = self.clock()
            query = "SELECT done, lease_until FROM assignments WHERE id=?"
            done, until = sql.execute(query, (assignment.id,)).fetchone()
            late = not done and until <= now
            if late and self._taken(sql, assignment.item.id, assignment.page, now) >= self.per_item:
                raise Refused(
                    409,
                    "the time for this item ran out and others have done it; "
                    "your draft is kept, go on with the next",
                )
            sql.execute(
                "INSERT INTO submissions(uuid, digest, assignment, doc, seconds, guideline,"
                " created) VALUES(?, ?, ?, ?, ?, ?, ?)",
                (uuid, digest, assignment.id, text, seconds, guideline, now),
            )
            sql.execute("UPDATE assignments SET done=1 WHERE id=?", (assignment.id,))
            return True

        return self.write(add)


def read_database(path: str | Path) -> tuple[str, list[Item], list[Submission]]:
    """Task, items and submissions in the order they were made; also while a server is writing."""
    if not Path(path).is_file():
        raise UserError(f"{path} does not exist: it is the database that serve.sh writes")
    try:
        sql = sqlite3.connect(path, timeout=30)
        try:
            (task,) = sql.execute("SELECT value FROM meta WHERE key='task'").fetchone()
            items = [
                Item(name, json.loads(row))
                for name, row in sql.execute("SELECT id, row FROM items ORDER BY position")
            ]
            found = sql.execute(
                "SELECT a.item, a.annotator, a.page, s.doc, a.shown, s.seconds, s.guideline,"
                " s.created FROM submissions s JOIN assignments a ON a.id=s.assignment ORDER BY"
                " s.number"
            ).fetchall()
        finally:
            sql.close()
    except sqlite3.Error as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return (
        task,
        items,
        [
            Submission(i, a, p, json.loads(d), json.loads(o), t, g, c)
            for i, a, p, d, o, t, g, c in found
        ],
    )


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
