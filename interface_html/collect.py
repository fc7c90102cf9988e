"""Read the files that several annotators sent back into a database, as if a server had them.

    fgrlhf feedback collect NAME files=anna.json,ben.json db=feedback.sqlite \\
        records=anna_record.json,ben_record.json

All programs that read a server's database then work on them: export with a majority, reliability,
adjudicate, agreement and submissions; serve can go on with it. Rows with the same title, texts and
sources are one item, whatever their ids and their order. Reading a file again adds nothing; a
changed judgement is a further revision.

A record.json names the annotator, and has the orders shown, times, skips, comments and flags. Of
its file only those pages count that the annotator submitted, not feedback that came with the items.
Without records the annotators have the names of the files, or those of `annotators`.
"""

import hashlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.configs.strict import FilePath, StrictModel
from interface_html.database import Database
from interface_html.format import FEEDBACK_KEYS, Item
from interface_html.items import read_items
from interface_html.judged_items import read_record, read_skips
from interface_html.merge import new_id
from interface_html.rules import count_errors
from interface_html.schema import PageName, Schema
from interface_html.stored import UNKNOWN_SECONDS
from interface_html.submitted import essence
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

# an item's texts, and how many earlier rows of its file, or of the database, have the same
Key = tuple[str, ...]


class CollectSettings(StrictModel):
    """The files to read, and the database."""

    task: str = Field(description=TASK_HELP)
    files: str = Field(description="feedback files that annotators sent back, separated by commas")
    db: FilePath = Field(
        default="outputs/feedback/feedback.sqlite",
        description="the database; created if it does not exist",
    )
    records: str = Field(default="", description="the record.json of each file, in their order")
    annotators: str = Field(
        default="",
        description="the annotator of each file, in their order; without it those of the records,"
        " or the names of the files",
    )
    items: str | None = Field(
        default=None, description="the file of items that they got, to add those nobody judged too"
    )


@dataclass(frozen=True)
class Given:
    """What an annotator said about an item on a page.

    Args:
      key: of the item.
      doc: the document, as a page submits it.
      shown: the order of the outputs; None if unknown.
      record: the values of the page in record.json: seconds, wall, submitted, guideline.
    """

    key: Key
    annotator: str
    page: PageName
    doc: dict[str, Any]
    shown: list[int] | None
    record: Mapping[str, Any]


def collect(settings: CollectSettings) -> int:
    """Add the judgements of the files. Returns how many are new.

    Raises:
      DataError: a file has malformed rows.
      UserError: a file cannot be read, or the database is in use or of another task.
    """
    task = feedback_of(settings.task)
    files = _listed(settings.files)
    if not files:
        raise UserError("files: name the files that annotators sent back: files=anna.json,ben.json")
    records = _of_each_file(settings.records, files, "records")
    names = _of_each_file(settings.annotators, files, "annotators")
    items: dict[Key, Item] = {}  # of all files
    if settings.items:
        items |= _by_key(task, read_items(task, settings.items))
    given: list[Given] = []
    skipped: list[Mapping[str, Any]] = []
    for number, file in enumerate(files):
        name = names[number] if names else None
        of_file = _by_key(task, read_items(task, file))
        items |= {key: item for key, item in of_file.items() if key not in items}
        entries: Sequence[Mapping[str, Any] | None] = [None] * len(of_file)
        if records:
            entries = read_record(task.schema, records[number], len(of_file))
            for skip in read_skips(task.schema, records[number]):
                skipped.append({**skip, "annotator": name or skip["annotator"]})
        for (key, item), entry in zip(of_file.items(), entries, strict=True):
            given += _judgements(task.schema, key, item, entry, name or "", Path(file).stem)
    if not given:
        raise UserError(
            f"{settings.files}: no row has a judgement. Name the files that **Download"
            " feedback.json** saved, not the files of items"
        )
    with closing(Database(settings.db, task.schema.task)) as database:
        return _add(task, database, items, given, skipped, settings.db)


def _by_key(task: FeedbackTask, items: Sequence[Item]) -> dict[Key, Item]:
    """The items by their texts. The second row with the same texts is another item."""
    copies: Counter[Key] = Counter()
    found: dict[Key, Item] = {}
    for item in items:
        texts = (*task.content(item), json.dumps(task.schema.sources(item.row)))
        found[(*texts, str(copies[texts]))] = item
        copies[texts] += 1
    return found


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _of_each_file(names: str, files: Sequence[str], key: str) -> list[str]:
    listed = _listed(names)
    if listed and len(listed) != len(files):
        raise UserError(
            f"{key} names {len(listed)} for {counted(len(files), 'file')}: give one for each file,"
            " in the same order"
        )
    return listed


def _judgements(
    schema: Schema,
    key: Key,
    item: Item,
    entry: Mapping[str, Any] | None,
    name: str,
    stem: str,
) -> Iterator[Given]:
    """The judgements in a row of a file.

    Args:
      entry: of the record; None without one.
      name: the annotator, if the lead named them; "" if not.
      stem: of the file, the name if nothing else gives one.
    """
    docs = _documents(schema, item)
    if entry is None:
        for page, doc in docs.items():
            yield Given(key, name or stem, page, doc, _order(schema, page, {}), {})
        return
    recorded = entry.get("annotator")
    annotator = name or (recorded if isinstance(recorded, str) and recorded.strip() else stem)
    for page, doc in docs.items():
        values = {}
        for part in ("seconds", "wall", "submitted", "guideline", "comment", "flag"):
            of_pages = entry.get(part)
            if isinstance(of_pages, Mapping):
                values[part] = of_pages.get(page)
        if values.get("seconds") is None:  # it came with the items
            continue
        if values.get("comment"):
            doc["comment"] = values["comment"]
        if values.get("flag"):
            doc["flag"] = True
        if page == "comparison":
            doc |= {part: entry[part] for part in ("all-bad", "seen") if entry.get(part)}
        shown = _order(schema, page, entry)
        if shown is not None and page != "annotation":
            doc["order"] = shown
        yield Given(key, annotator, page, doc, shown, values)


def _documents(schema: Schema, item: Item) -> dict[PageName, dict[str, Any]]:
    """The judgements in a row, as the pages submit them."""
    docs: dict[PageName, dict[str, Any]] = {}
    if item.feedback is not None and "annotation" in schema.pages:
        no_error = count_errors(schema, item.feedback) == 0
        docs["annotation"] = {**item.feedback, "no-error": no_error}
    if item.preference is not None and "comparison" in schema.pages:
        docs["comparison"] = {"preference": list(item.preference)}
    if item.ratings is not None and "rating" in schema.pages:
        docs["rating"] = {"ratings": dict(item.ratings)}
    return docs


def _order(schema: Schema, page: PageName, entry: Mapping[str, Any]) -> list[int] | None:
    """The order in which the outputs were shown; None if unknown."""
    if page == "annotation":
        return list(range(len(schema.fields.outputs)))
    return entry.get("order" if page == "comparison" else "rating order")


# ---- into the database ---------------------------------------------------------------------------


def _add(
    task: FeedbackTask,
    database: Database,
    items: Mapping[Key, Item],
    given: Sequence[Given],
    skipped: Sequence[Mapping[str, Any]],
    db: str,
) -> int:
    """Add items and judgements, and print their numbers. Returns how many judgements are new."""
    stored = _by_key(task, [*database.items(), *database.gold_items()])
    taken = {item.id for item in stored.values()}
    new_items = []
    ids: dict[str, str] = {}  # of the files -> of the database
    for key, item in items.items():
        if key not in stored:
            row = {name: value for name, value in item.row.items() if name not in FEEDBACK_KEYS}
            stored[key] = Item(new_id(item.id, taken), row)
            taken.add(stored[key].id)
            new_items.append(stored[key])
        ids.setdefault(item.id, stored[key].id)
    database.add_items(new_items)
    known = [skip for skip in skipped if skip["id"] in ids]
    now = time.time()

    given = [replace(one, annotator=database.spelling(one.annotator)) for one in given]
    known = [{**one, "annotator": database.spelling(one["annotator"])} for one in known]

    def write(sql: sqlite3.Connection) -> tuple[Counter[str], int]:
        added: Counter[str] = Counter()
        for one in given:
            added[one.page] += _submit(sql, stored[one.key].id, one, now)
        return added, sum(_skip(sql, ids[skip["id"]], skip, now) for skip in known)

    added, n_skips = database.write(write)
    names = sorted({one.annotator for one in given})
    pages = ", ".join(counted(count, page) for page, count in added.items() if count)
    print(
        f"{db}: {counted(added.total(), 'new judgement')}"
        f"{f' ({pages})' if pages else ''} of {counted(len({one.key for one in given}), 'item')} by"
        f" {counted(len(names), 'annotator')} ({shorten(', '.join(names), 200)})"
    )
    if len(given) > added.total():
        print(f"  stored already: {counted(len(given) - added.total(), 'judgement')}")
    if n_skips:
        print(f"  {counted(n_skips, 'skipped item')}")
    if len(known) < len(skipped):
        print(
            f"  left out {counted(len(skipped) - len(known), 'skip')} of items that no file has:"
            " name the file of items with items=..."
        )
    return added.total()


def _assignment(sql: sqlite3.Connection, item: str, one: Mapping[str, Any]) -> int:
    """The number of the assignment of an annotator's item on a page, which is made if needed."""
    key = (item, one["annotator"], one["page"])
    query = "SELECT id FROM assignments WHERE item=? AND annotator=? AND page=?"
    found = sql.execute(query, key).fetchone()
    if found:
        return found[0]
    sql.execute(
        "INSERT INTO assignments(item, annotator, page, shown, lease_until) VALUES(?, ?, ?, ?, 0)",
        (*key, json.dumps(one["shown"])),
    )
    return sql.execute("SELECT last_insert_rowid()").fetchone()[0]


def _submit(sql: sqlite3.Connection, item: str, one: Given, now: float) -> bool:
    """Add a judgement. False if the annotator's latest one of the item and page is the same."""
    place = {"annotator": one.annotator, "page": one.page, "shown": one.shown}
    number = _assignment(sql, item, place)
    doc = json.dumps(one.doc)
    last = sql.execute(
        "SELECT doc FROM submissions WHERE assignment=? ORDER BY number DESC LIMIT 1", (number,)
    ).fetchone()
    # what a page adds to judgements is in no file
    added = ("order", "suggestions", "seen"), ("quote", "origin")
    if last and essence(json.loads(last[0]), *added) == essence(json.loads(doc), *added):
        return False
    (count,) = sql.execute(
        "SELECT COUNT(*) FROM submissions WHERE assignment=?", (number,)
    ).fetchone()
    digest = hashlib.sha256(f"{number} {count} {doc}".encode()).hexdigest()
    values = {
        "uuid": f"collected-{digest}",
        "digest": digest,
        "assignment": number,
        "doc": doc,
        "seconds": float(one.record.get("seconds", UNKNOWN_SECONDS)),
        "guideline": str(one.record.get("guideline") or ""),
        "created": _time(one.record.get("submitted"), now),
        "wall": wall if isinstance(wall := one.record.get("wall"), int | float) else None,
        "guideline_sha256": None,
    }
    places = ", ".join(f":{name}" for name in values)
    sql.execute(f"INSERT INTO submissions({', '.join(values)}) VALUES({places})", values)
    sql.execute("UPDATE assignments SET done=1, skipped=NULL WHERE id=?", (number,))
    return True


def _skip(sql: sqlite3.Connection, item: str, skip: Mapping[str, Any], now: float) -> bool:
    """Note a skip. False if the annotator has judged or skipped the item already."""
    number = _assignment(sql, item, {**skip, "shown": None})
    done, earlier = sql.execute(
        "SELECT done, skipped FROM assignments WHERE id=?", (number,)
    ).fetchone()
    if done or earlier is not None:
        return False
    stored = {key: skip["skipped"][key] for key in ("reason", "text")}
    stored["created"] = _time(skip["skipped"].get("time"), now)
    sql.execute("UPDATE assignments SET skipped=? WHERE id=?", (json.dumps(stored), number))
    return True


def _time(text: Any, now: float) -> float:
    """A time of a record in seconds since 1970; `now` without one."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return now
