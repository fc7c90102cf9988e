"""The file of a feedback server: its tables, their versions, and reading it without the server."""

import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.data.names import Spellings
from interface_html import checks
from interface_html.connections import reading
from interface_html.format import Item
from interface_html.schema import PageName, Schema
from interface_html.skips import Skip, stored_skips

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
  skipped TEXT,
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
  created REAL NOT NULL,
  wall REAL,
  guideline_sha256 TEXT);
CREATE TABLE IF NOT EXISTS withheld(
  item TEXT NOT NULL REFERENCES items(id),
  page TEXT NOT NULL,
  PRIMARY KEY(item, page));
"""
VERSION = 5  # `PRAGMA user_version` of the file
UNKNOWN_SECONDS = -1.0  # of submissions from files without a record


@dataclass(frozen=True)
class Submission:
    """A stored submission.

    Args:
      revision: 1 for the first submission of the annotator on this item and page.
      shown: the order of the outputs; None if it is unknown.
      seconds: active time; None if it is unknown.
      created: seconds since 1970.
      wall, guideline_sha256: None if they are unknown.
    """

    item: str
    annotator: str
    page: str
    doc: dict
    shown: list[int] | None
    seconds: float | None
    guideline: str
    created: float
    revision: int
    wall: float | None
    guideline_sha256: str | None


@dataclass(frozen=True)
class Study:
    """The contents of a server's file at one moment.

    Args:
      all_items: in their order, also hidden ones.
      all_submissions: by time.
      hidden: gold items and repeated items, by id: see checks.py.
      skips: those that were not undone.
    """

    all_items: list[Item]
    all_submissions: list[Submission]
    hidden: dict[str, checks.Check]
    skips: list[Skip]

    @property
    def items(self) -> list[Item]:
        """The items of the study, without hidden ones."""
        return [item for item in self.all_items if item.id not in self.hidden]

    @property
    def submissions(self) -> list[Submission]:
        """The submissions on `items` that count: their annotators did not skip the item later."""
        return [entry for entry in self.unskipped if entry.item not in self.hidden]

    @property
    def unskipped(self) -> list[Submission]:
        """The submissions that count, also those on hidden items."""
        skipped = {(skip.item, skip.annotator, skip.page) for skip in self.skips}
        kept = []
        for entry in self.all_submissions:
            if (entry.item, entry.annotator, entry.page) not in skipped:
                kept.append(entry)
        return kept

    @property
    def gold(self) -> list[Item]:
        """The hidden gold items."""
        return [item for item in self.all_items if self._kind(item.id) == "gold"]

    @property
    def repeats(self) -> dict[str, str]:
        """For each repeated item, the item that it repeats."""
        return {
            name: check.original for name, check in self.hidden.items() if check.kind == "repeat"
        }

    def _kind(self, item: str) -> checks.Kind | None:
        return self.hidden[item].kind if item in self.hidden else None


def create_tables(sql: sqlite3.Connection, task: str) -> str:
    """Create the tables that the file lacks. Returns the task that it belongs to.

    Raises:
      UserError: another version of the program wrote the file, or another program.
    """
    tables = {name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if tables and not {"meta", "submissions"} <= tables:
        names = shorten(", ".join(sorted(tables)))
        raise UserError(
            f"the database belongs to another program (its tables: {names}). Set db=... to another"
            " file"
        )
    if tables:
        _check_version(sql)
    for statement in TABLES.split(";\n"):
        sql.execute(statement)
    checks.create_table(sql)
    sql.execute(f"PRAGMA user_version={VERSION}")
    sql.execute("INSERT OR IGNORE INTO meta VALUES('task', ?)", (task,))
    sql.execute("INSERT OR IGNORE INTO meta VALUES('study', ?)", (secrets.token_hex(8),))
    return sql.execute("SELECT value FROM meta WHERE key='task'").fetchone()[0]


def _check_version(sql: sqlite3.Connection) -> None:
    (version,) = sql.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise UserError(
            f"the database has version {version}, and this program reads version {VERSION}: use the"
            " one that wrote it, or set db=... to another file"
        )


def stored_spellings(sql: sqlite3.Connection) -> Spellings:
    """The spellings of the annotators' names in the file, as first written."""
    spellings = Spellings()
    for (name,) in sql.execute("SELECT annotator FROM assignments ORDER BY id"):
        spellings.of(name)
    for (name,) in sql.execute("SELECT name FROM annotators ORDER BY rowid"):
        spellings.of(name)
    return spellings


def read_database(path: str | Path, task: str) -> Study:
    """The contents of a server's file. The server may write to it meanwhile.

    Raises:
      UserError: the file does not exist, cannot be read, or belongs to another task or version.
    """
    with reading(path) as sql:
        _check_version(sql)
        (stored_task,) = sql.execute("SELECT value FROM meta WHERE key='task'").fetchone()
        if stored_task != task:
            raise other_task(path, stored_task, task)
        return stored_study(sql)


def read_fitting_study(
    path: str | Path, schema: Schema, pages: Sequence[PageName] | None = None
) -> Study:
    """As `read_database`, for programs that compute figures from the submissions.

    Args:
      path: the file.
      schema: of its task.
      pages: those whose submissions are used; None: all pages.

    Raises:
      UserError: as `read_database`, or the study was collected with another schema (`misfit`).
    """
    study = read_database(path, schema.task)
    reason = misfit(schema, study, pages)
    if reason is not None:
        raise UserError(f"{path}: {reason}")
    return study


def misfit(schema: Schema, study: Study, pages: Sequence[PageName] | None = None) -> str | None:
    """Why items or latest submissions cannot be read with a schema, with the remedy, or None.

    The schema may have got more outputs or scales since they were stored. Kinds of error that it no
    longer has stay in the annotations.
    """
    reason = items_misfit(schema, study.all_items)
    if reason is not None:
        return reason
    used = schema.pages if pages is None else pages
    latest = {(one.item, one.annotator, one.page): one for one in study.unskipped}
    lacking = [one for one in latest.values() if one.page in used and _lacks_values(schema, one)]
    if not lacking:
        return None
    first = lacking[0]
    return (
        f"{counted(len(lacking), 'submission')} without a value for a scale or a pair of responses"
        f" that schema.js has now, such as the {first.page} of item {first.item!r} by"
        f" {first.annotator}: restore the schema, or let the annotators submit these items again"
    )


def items_misfit(schema: Schema, items: Sequence[Item]) -> str | None:
    """Why stored items cannot be shown with a schema, with the remedy, or None."""
    for item in items:
        keys = [key for key in schema.row if key not in item.row]
        if keys:
            return (
                f"item {item.id!r} has no {' and no '.join(keys)}, which schema.js has now: restore"
                " the schema, or set db=... to another file"
            )
    return None


def _lacks_values(schema: Schema, submission: Submission) -> bool:
    if submission.page == "comparison":
        return len(submission.doc["preference"]) != len(schema.pairs)
    if submission.page == "rating":
        ratings = submission.doc["ratings"]
        names = {scale.name for scale in schema.ratings}
        return any(not names <= ratings.get(output, {}).keys() for output in schema.fields.outputs)
    return False


def stored_study(sql: sqlite3.Connection) -> Study:
    """The contents of the file of a connection."""
    item_rows = sql.execute("SELECT id, row FROM items ORDER BY position").fetchall()
    submission_rows = sql.execute(
        "SELECT a.item, a.annotator, a.page, s.doc, a.shown, s.seconds, s.guideline, s.created,"
        " s.wall, s.guideline_sha256 FROM submissions s JOIN assignments a ON a.id=s.assignment"
        " ORDER BY s.number"
    ).fetchall()
    submissions = []
    revisions: Counter[tuple[str, str, str]] = Counter()
    for row in submission_rows:
        item, annotator, page, doc, shown, seconds, guideline, created, wall, sha256 = row
        key = item, annotator, page
        revisions[key] += 1
        content = json.loads(doc)
        submissions.append(
            Submission(
                item=item,
                annotator=annotator,
                page=page,
                doc=content,
                shown=content.get("order", json.loads(shown)),  # `collect` adds other orders
                seconds=None if seconds == UNKNOWN_SECONDS else seconds,
                guideline=guideline,
                created=created,
                revision=revisions[key],
                wall=wall,
                guideline_sha256=sha256,
            )
        )
    return Study(
        all_items=[Item(name, json.loads(row)) for name, row in item_rows],
        all_submissions=submissions,
        hidden=checks.stored_checks(sql),
        skips=stored_skips(sql),
    )


def other_task(path: str | Path, stored_task: str, task: str) -> UserError:
    return UserError(
        f"{path} has feedback of the task {stored_task}, not of {task}: set another db=... or"
        " another task=..."
    )
