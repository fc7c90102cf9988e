"""The file of a feedback server: its tables, their versions, and reading it without the server."""

import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
CREATE TABLE IF NOT EXISTS withheld(
  item TEXT NOT NULL REFERENCES items(id),
  page TEXT NOT NULL,
  PRIMARY KEY(item, page));
"""
# `PRAGMA user_version` of the file; 0 in files of the first version, which lack these columns
VERSION = 5  # since this version, spellings of one name are one annotator: see `_join_names`
UNKNOWN_SECONDS = -1.0  # of submissions from files without a record
NEW_COLUMNS = {"wall": "REAL", "guideline_sha256": "TEXT"}
# since version 3: JSON of {reason, text, created} if the annotator skipped the item
SKIP_COLUMNS = {"skipped": "TEXT"}


@dataclass(frozen=True)
class Submission:
    """A stored submission.

    Args:
      revision: 1 for the first submission of the annotator on this item and page.
      shown: the order of the outputs; None if it is unknown.
      seconds: active time; None if it is unknown.
      created: seconds since 1970.
      wall, guideline_sha256: None if the database is older than these values.
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
    """Create the tables and columns that the file lacks. Returns the task that it belongs to.

    Raises:
      UserError: a newer version of the program wrote the file, or another program.
    """
    tables = {name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if tables and not {"meta", "submissions"} <= tables:
        names = shorten(", ".join(sorted(tables)))
        raise UserError(
            f"the database belongs to another program (its tables: {names}). Set db=... to another"
            " file"
        )
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
    if version < VERSION:
        _join_names(sql)
    sql.execute(f"PRAGMA user_version={VERSION}")
    sql.execute("INSERT OR IGNORE INTO meta VALUES('task', ?)", (task,))
    sql.execute("INSERT OR IGNORE INTO meta VALUES('study', ?)", (secrets.token_hex(8),))
    return sql.execute("SELECT value FROM meta WHERE key='task'").fetchone()[0]


def stored_spellings(sql: sqlite3.Connection) -> Spellings:
    """The spellings of the annotators' names in the file, as first written."""
    spellings = Spellings()
    for (name,) in sql.execute("SELECT annotator FROM assignments ORDER BY id"):
        spellings.of(name)
    for (name,) in sql.execute("SELECT name FROM annotators ORDER BY rowid"):
        spellings.of(name)
    return spellings


def _join_names(sql: sqlite3.Connection) -> None:
    """Give all spellings of a name the first one, in a file of an earlier version.

    If two spellings had the same item on the same page, their submissions become revisions of one
    assignment, in the order in which they came.
    """
    spellings = stored_spellings(sql)
    rows = sql.execute("SELECT id, page, item, annotator FROM assignments ORDER BY id").fetchall()
    first_of: dict[tuple[str, str, str], int] = {}
    for number, page, item, annotator in rows:
        name = spellings.of(annotator)
        first = first_of.setdefault((page, item, name), number)
        if first != number:
            count = sql.execute(
                "UPDATE submissions SET assignment=? WHERE assignment=?", (first, number)
            ).rowcount
            if count:
                sql.execute("UPDATE assignments SET done=1, skipped=NULL WHERE id=?", (first,))
            sql.execute("DELETE FROM drafts WHERE assignment=?", (number,))
            sql.execute("DELETE FROM assignments WHERE id=?", (number,))
    for (*_, name), number in first_of.items():
        sql.execute("UPDATE assignments SET annotator=? WHERE id=?", (name, number))


def read_database(path: str | Path, task: str) -> Study:
    """The contents of a server's file. The server may write to it meanwhile.

    Raises:
      UserError: the file does not exist, cannot be read, or belongs to another task.
    """
    with reading(path) as sql:
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
    stored = _columns(sql)
    new = [f"s.{name}" if name in stored else "NULL" for name in NEW_COLUMNS]
    submission_rows = sql.execute(
        "SELECT a.id, a.item, a.annotator, a.page, s.doc, a.shown, s.seconds, s.guideline,"
        f" s.created, {', '.join(new)} FROM submissions s JOIN assignments a ON a.id=s.assignment"
        " ORDER BY s.number"
    ).fetchall()
    submissions = []
    spellings = stored_spellings(sql)
    revisions: Counter[tuple[str, str, str]] = Counter()
    submitted: dict[tuple[str, str, str], set[int]] = {}  # the assignments, under any spelling
    for row in submission_rows:
        number, item, spelling, page, doc, shown, seconds, guideline, created, *new = row
        wall, guideline_sha256 = new
        annotator = spellings.of(spelling)
        key = item, annotator, page
        revisions[key] += 1
        submitted.setdefault(key, set()).add(number)
        content = json.loads(doc)
        submissions.append(
            Submission(
                item=item,
                annotator=annotator,
                page=page,
                doc=content,
                # a revision of another assignment has an order of its own
                shown=content.get("order", json.loads(shown)),
                seconds=None if seconds == UNKNOWN_SECONDS else seconds,
                guideline=guideline,
                created=created,
                revision=revisions[key],
                wall=wall,
                guideline_sha256=guideline_sha256,
            )
        )
    skips = []
    for number, skip in stored_skips(sql):
        skip = replace(skip, annotator=spellings.of(skip.annotator))
        if not submitted.get((skip.item, skip.annotator, skip.page), set()) - {number}:
            skips.append(skip)
    return Study(
        all_items=[Item(name, json.loads(row)) for name, row in item_rows],
        all_submissions=submissions,
        hidden=checks.stored_checks(sql),
        skips=skips,
    )


def other_task(path: str | Path, stored_task: str, task: str) -> UserError:
    return UserError(
        f"{path} has feedback of the task {stored_task}, not of {task}: set another db=... or"
        " another task=..."
    )


def _columns(sql: sqlite3.Connection, table: str = "submissions") -> set[str]:
    """The columns of a table."""
    return {row[1] for row in sql.execute(f"PRAGMA table_info({table})")}
