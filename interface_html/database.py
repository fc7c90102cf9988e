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
import random
import secrets
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fgrlhf.errors import UserError
from interface_html import checks
from interface_html.format import Item

TABLES = """
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items(
  id TEXT PRIMARY KEY,
  position INTEGER NOT NULL UNIQUE,
  row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS annotators(name TEXT PRIMARY KEY, token_sha256 TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS assignments(
  id INTEGER PRIMARY KEY,
  item TEXT NOT NULL REFERENCES items(id),
  annotator TEXT NOT NULL,
  page TEXT NOT NULL,
  shown TEXT NOT NULL,
  done INTEGER NOT NULL DEFAULT 0,
  lease_until REAL NOT NULL,
  UNIQUE(page, item, annotator));
CREATE INDEX IF NOT EXISTS by_annotator ON assignments(annotator, page, done);
CREATE INDEX IF NOT EXISTS by_item ON assignments(page, item, done, lease_until);
CREATE TABLE IF NOT EXISTS drafts(
  assignment INTEGER PRIMARY KEY REFERENCES assignments(id),
  revision INTEGER NOT NULL,
  state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS submissions(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  uuid TEXT NOT NULL UNIQUE,
  digest TEXT NOT NULL,
  assignment INTEGER NOT NULL REFERENCES assignments(id),
  doc TEXT NOT NULL,
  seconds REAL NOT NULL,
  guideline TEXT NOT NULL,
  created REAL NOT NULL);
"""
# `PRAGMA user_version` of the file; 0 in files of the first version, which lack these columns
VERSION = 4
NEW_COLUMNS = {"wall": "REAL", "guideline_sha256": "TEXT"}
# since version 3: JSON of {reason, text, created} if the annotator skipped the item
SKIP_COLUMNS = {"skipped": "TEXT"}


class RefusedError(Exception):
    """A request that the server refuses, with its HTTP status and the reason."""

    def __init__(self, status: int, reason: str, **details: Any):
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.details = details  # more keys of the response


@dataclass(frozen=True)
class Assignment:
    """An item given to an annotator.

    Args:
      shown: indices of the outputs in the order in which the page shows them.
      draft: (revision, state of the page), or None.
      submissions: how often it was submitted.
      submitted: the document of the latest submission, or None.
      skipped: {reason, text} if the annotator skipped the item, or None.
    """

    id: int
    item: Item
    annotator: str
    page: str
    shown: list[int]
    done: bool
    lease_until: float
    draft: tuple[int, Any] | None
    submissions: int
    submitted: dict | None
    skipped: dict[str, str] | None


@dataclass(frozen=True)
class Receipt:
    """What the server measured and what the page sent with a submission.

    Args:
      seconds: active time.
      wall: time for which the item was open; None if unknown.
      guideline: version of the guideline.
      guideline_sha256: hash of its text; None if unknown.
    """

    seconds: float
    guideline: str
    wall: float | None = None
    guideline_sha256: str | None = None


@dataclass(frozen=True)
class Submission:
    """A stored submission.

    Args:
      revision: 1 for the first submission of the annotator on this item and page.
      created: seconds since 1970.
      wall, guideline_sha256: None if the database is older than these values.
    """

    item: str
    annotator: str
    page: str
    doc: dict
    shown: list[int]
    seconds: float
    guideline: str
    created: float
    revision: int
    wall: float | None
    guideline_sha256: str | None


class _Job:
    """Work on the connection, with its result once it is on the disk or refused."""

    def __init__(self, work: Callable[[sqlite3.Connection], Any]):
        self.work = work
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None


class Database:
    """The storage of a server. Opens the file, or creates it.

    Args:
      path: the file.
      task: the name of the task; a file of another task is refused.
      per_item: number of annotators for each item, on each page.
      lease_seconds: after this time without activity an item goes to other annotators.
      clock: returns the time in seconds.
      plan: how often hidden gold items and repeated items are given.

    Raises:
      UserError: another server uses the file, it belongs to another task, or it is not a database.
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
        self.path = Path(path)
        self.per_item = per_item
        self.lease_seconds = lease_seconds
        self.clock = clock
        self.plan = plan
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()  # guards the connection
        self._waiting: deque[_Job] = deque()
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
            stored_task = self.write(lambda sql: self._create_tables(sql, task))
            names = self._connection.execute("SELECT token_sha256, name FROM annotators")
            self._names: dict[str, str] = dict(names.fetchall())
        except sqlite3.Error as error:
            self._lock_file.close()
            raise UserError(f"{path} cannot be used as a database: {error}") from None
        except UserError:
            self.close()
            raise
        if stored_task != task:
            self.close()
            raise _other_task(path, stored_task, task)

    def close(self) -> None:
        self._connection.close()
        self._lock_file.close()

    @staticmethod
    def _create_tables(sql: sqlite3.Connection, task: str) -> str:
        for statement in TABLES.split(";\n"):
            sql.execute(statement)
        (version,) = sql.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise UserError(
                f"the database has version {version}, which a newer version of this program wrote;"
                f" this one reads up to {VERSION}: update it, or set db=... to another file"
            )
        columns = _columns(sql)
        for name, kind in NEW_COLUMNS.items():
            if name not in columns:
                sql.execute(f"ALTER TABLE submissions ADD COLUMN {name} {kind}")
        columns = _columns(sql, "assignments")
        for name, kind in SKIP_COLUMNS.items():
            if name not in columns:
                sql.execute(f"ALTER TABLE assignments ADD COLUMN {name} {kind}")
        checks.create_table(sql)
        sql.execute(f"PRAGMA user_version={VERSION}")
        sql.execute("INSERT OR IGNORE INTO meta VALUES('task', ?)", (task,))
        return sql.execute("SELECT value FROM meta WHERE key='task'").fetchone()[0]

    def write(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run `work(connection)` and return its result once everything it wrote is on the disk.

        The thread that gets the lock commits the work of all waiting threads, with one flush of the
        disk. Work that raises is rolled back alone. `work` may run twice (see `_commit`), so it
        must change nothing but the database.
        """
        job = _Job(work)
        self._waiting.append(job)
        with self._lock:
            if not job.done:
                self._commit([self._waiting.popleft() for _ in range(len(self._waiting))])
        if job.error is not None:
            raise job.error
        return job.value

    def _commit(self, jobs: Sequence[_Job]) -> None:
        """Commit all jobs in one transaction, or each alone if the storage refuses that.

        Only the jobs that cannot be stored fail.
        """
        try:
            self._transaction(jobs)
        except sqlite3.Error as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._commit([job])
            else:
                jobs[0].error = error
        except BaseException as error:  # an interrupt: nothing was committed
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
                job.value = None
                job.error = None
                try:
                    job.value = job.work(sql)
                except sqlite3.Error:
                    raise
                except Exception as error:  # raised again in the thread of the caller
                    job.error = error
                    sql.execute("ROLLBACK TO job")
                sql.execute("RELEASE job")
            sql.execute("COMMIT")
        except BaseException:
            if sql.in_transaction:
                sql.execute("ROLLBACK")
            raise

    # ---- items and annotators --------------------------------------------------------------------

    def add_items(self, items: Sequence[Item]) -> int:
        """Add the items whose id is new. Returns their number.

        Raises:
          UserError: an item with the same id and other texts is already stored.
        """

        def add(sql: sqlite3.Connection) -> int:
            added = 0
            (last,) = sql.execute("SELECT COALESCE(MAX(position), -1) FROM items").fetchone()
            for item in items:
                row = json.dumps(item.row)
                stored = sql.execute("SELECT row FROM items WHERE id=?", (item.id,)).fetchone()
                if stored and stored[0] != row:
                    raise UserError(
                        f"item {item.id!r} is already in {self.path} with other texts: give the"
                        " new item another id"
                    )
                if not stored:
                    added += 1
                    sql.execute("INSERT INTO items VALUES(?, ?, ?)", (item.id, last + added, row))
            return added

        return self.write(add)

    def add_gold(self, items: Sequence[tuple[Item, Sequence[str]]]) -> int:
        """Add gold items, each with its judged pages: see checks.py. Returns their number."""
        return self.write(lambda sql: checks.add_gold(sql, items))

    @property
    def has_checks(self) -> bool:
        """Whether annotators may get hidden items."""
        with self._lock:
            stored = self._connection.execute("SELECT 1 FROM checks LIMIT 1").fetchone()
        return stored is not None or self.plan.repeat_every is not None

    def items(self) -> list[Item]:
        """The items of the study, without hidden ones."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT id, row FROM items WHERE id NOT IN (SELECT item FROM checks) ORDER BY"
                " position"
            ).fetchall()
        return [Item(name, json.loads(row)) for name, row in rows]

    def new_token(self, annotator: str) -> str:
        """A new token for an annotator, which replaces the old one. Only hashes are stored."""
        token = secrets.token_urlsafe(24)
        row = (annotator, _sha(token))
        self.write(lambda sql: sql.execute("INSERT OR REPLACE INTO annotators VALUES(?, ?)", row))
        others = {digest: name for digest, name in self._names.items() if name != annotator}
        self._names = {**others, row[1]: annotator}
        return token

    def has_token(self, annotator: str) -> bool:
        return annotator in self._names.values()

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
            "SELECT id FROM items WHERE NOT EXISTS (SELECT 1 FROM assignments a WHERE a.page=:page"
            " AND a.item=items.id AND a.annotator=:annotator) AND (SELECT COUNT(*) FROM assignments"
            " a WHERE a.page=:page AND a.item=items.id  AND (a.done OR a.lease_until>:now)) <"
            " :wanted AND id NOT IN (SELECT item FROM checks) ORDER BY position LIMIT 1",
            {"page": page, "annotator": annotator, "now": now, "wanted": self.per_item},
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
        with self._lock:
            assignment = self._read(self._connection, number)
        if assignment.annotator != annotator:
            raise RefusedError(404, "there is no such assignment")
        return assignment

    def own_assignments(self, annotator: str, page: str) -> list[tuple[int, str, bool]]:
        """The annotator's assignments, oldest first: (number, id of the item, whether done)."""
        query = "SELECT id, item, done FROM assignments WHERE annotator=? AND page=? ORDER BY id"
        with self._lock:
            rows = self._connection.execute(query, (annotator, page)).fetchall()
        return [(number, item, bool(done)) for number, item, done in rows]

    def own_skips(self, annotator: str, page: str) -> dict[int, dict[str, str]]:
        """The skips of the annotator, {reason, text}, by the number of the assignment."""
        query = (
            "SELECT id, skipped FROM assignments WHERE annotator=? AND page=? AND skipped IS NOT"
            " NULL"
        )
        with self._lock:
            rows = self._connection.execute(query, (annotator, page)).fetchall()
        return {number: _reason(json.loads(skipped)) for number, skipped in rows}

    def renew(self, assignment: Assignment) -> bool:
        """Renew the lease. False if it has ended and others have taken the item."""
        return self.write(lambda sql: self._renew(sql, assignment, self.clock()))

    def progress(self, annotator: str, page: str) -> tuple[int, int]:
        """The number of items that the annotator has submitted, and of all items.

        Hidden items count in both, like others.
        """
        with self._lock:
            query = "SELECT COUNT(*) FROM assignments WHERE annotator=? AND page=? AND done"
            done = self._connection.execute(query, (annotator, page)).fetchone()[0]
            total = checks.expected_items(self._connection, self.plan, annotator, page)
        return done, total

    # ---- work ------------------------------------------------------------------------------------

    def save_draft(self, assignment: Assignment, revision: int, state: Any) -> int:
        """Store a draft and return its revision.

        Args:
          assignment: the assignment that the draft belongs to.
          revision: the revision that the draft is based on; 0 for the first draft.
          state: the state of the page.

        Raises:
          RefusedError: (409) another draft was stored after that revision.
        """
        text = json.dumps(state)

        def save(sql: sqlite3.Connection) -> int:
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

    def skip(self, assignment: Assignment, reason: str, text: str) -> None:
        """Close the assignment as skipped: others get the item, and its submissions do not count.

        Args:
          assignment: what is skipped.
          reason: the name of a skip reason.
          text: the explanation; "" without one.
        """
        skipped = json.dumps({"reason": reason, "text": text, "created": self.clock()})
        query = "UPDATE assignments SET skipped=?, done=0, lease_until=0 WHERE id=?"
        self.write(lambda sql: sql.execute(query, (skipped, assignment.id)))

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

        Args:
          assignment: what it belongs to. If its lease has ended, the submission is an extra one.
          uuid: names the submission; a repeated request has the same.
          doc: the annotation or comparison.
          receipt: the times and the guideline.
          seen: the number of this assignment's submissions that the page knows.
          confirmed: whether to add it although there are newer ones.

        Raises:
          RefusedError: (409) the uuid belongs to another submission, or there are submissions that
            the page has not seen and the annotator has not confirmed to replace.
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
            query = "SELECT COUNT(*) FROM submissions WHERE assignment=?"
            (count,) = sql.execute(query, (assignment.id,)).fetchone()
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


def read_database(
    path: str | Path, task: str, with_checks: bool = False
) -> tuple[list[Item], list[Submission]]:
    """All items, and all submissions by time. A server may write to the file meanwhile.

    Args:
      path: the file.
      task: the name of the task.
      with_checks: also those of hidden gold items and repeated items: see checks.py.

    Raises:
      UserError: the file does not exist, cannot be read, or belongs to another task.
    """
    if not Path(path).is_file():
        raise UserError(f"{path} does not exist: set db=... to the server's database")
    try:
        sql = sqlite3.connect(path, timeout=30)
        try:
            (stored_task,) = sql.execute("SELECT value FROM meta WHERE key='task'").fetchone()
            item_rows = sql.execute("SELECT id, row FROM items ORDER BY position").fetchall()
            stored = _columns(sql)
            new = [f"s.{name}" if name in stored else "NULL" for name in NEW_COLUMNS]
            submission_rows = sql.execute(
                "SELECT a.id, a.item, a.annotator, a.page, s.doc, a.shown, s.seconds, s.guideline,"
                f" s.created, {', '.join(new)} FROM submissions s JOIN assignments a ON"
                " a.id=s.assignment ORDER BY s.number"
            ).fetchall()
            hidden = {} if with_checks else checks.stored_checks(sql)
        finally:
            sql.close()
    except sqlite3.Error as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if stored_task != task:
        raise _other_task(path, stored_task, task)
    items = [Item(name, json.loads(row)) for name, row in item_rows if name not in hidden]
    submissions = []
    revisions: Counter[int] = Counter()
    for row in submission_rows:
        number, item, annotator, page, doc, shown, seconds, guideline, created, *new = row
        if item in hidden:
            continue
        wall, guideline_sha256 = new
        revisions[number] += 1
        submissions.append(
            Submission(
                item=item,
                annotator=annotator,
                page=page,
                doc=json.loads(doc),
                shown=json.loads(shown),
                seconds=seconds,
                guideline=guideline,
                created=created,
                revision=revisions[number],
                wall=wall,
                guideline_sha256=guideline_sha256,
            )
        )
    return items, submissions


def _columns(sql: sqlite3.Connection, table: str = "submissions") -> set[str]:
    """The columns of a table."""
    return {row[1] for row in sql.execute(f"PRAGMA table_info({table})")}


def _reason(skipped: dict[str, Any]) -> dict[str, str]:
    """A stored skip without its time."""
    return {key: skipped[key] for key in ("reason", "text")}


def _other_task(path: str | Path, stored_task: str, task: str) -> UserError:
    return UserError(
        f"{path} has feedback of the task {stored_task}, not of {task}: set another db=... or"
        " another task=..."
    )


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
