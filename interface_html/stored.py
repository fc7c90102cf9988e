"""The file of a feedback server: its tables, their versions, and reading it without the server."""

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fgrlhf.errors import UserError
from interface_html import checks
from interface_html.connections import reading
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


def create_tables(sql: sqlite3.Connection, task: str) -> str:
    """Create the tables and columns that the file lacks. Returns the task that it belongs to.

    Raises:
      UserError: a newer version of the program wrote the file.
    """
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
    with reading(path) as sql:
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
    if stored_task != task:
        raise other_task(path, stored_task, task)
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


def other_task(path: str | Path, stored_task: str, task: str) -> UserError:
    return UserError(
        f"{path} has feedback of the task {stored_task}, not of {task}: set another db=... or"
        " another task=..."
    )


def _columns(sql: sqlite3.Connection, table: str = "submissions") -> set[str]:
    """The columns of a table."""
    return {row[1] for row in sql.execute(f"PRAGMA table_info({table})")}
