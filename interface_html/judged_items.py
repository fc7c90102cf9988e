"""Items with the judgements of all their annotators, from a database or from feedback files.

Files are matched by the texts of their rows, so annotators may have judged different items, in any
order.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import read_json
from fgrlhf.base.records import Record, RowError, read, read_each, refuse_rows
from fgrlhf.data.names import name_key
from interface_html.format import Item
from interface_html.items import read_items
from interface_html.ratings import Ratings
from interface_html.rules import Document
from interface_html.schema import Schema
from interface_html.skips import skip_problems
from interface_html.stored import Submission, read_fitting_study
from interface_html.tasks import FeedbackTask


@dataclass(frozen=True)
class GivenPreference:
    """An annotator's preference for each pair, and the order in which the outputs were shown.

    `shown` is None if the order is unknown.
    """

    preference: list[int]
    shown: list[int] | None


@dataclass
class JudgedItem:
    """An item with the judgements of its annotators, by annotator.

    `seconds` has the active times of the annotators, by page.
    """

    item: Item
    annotations: dict[str, Document] = field(default_factory=dict)
    comparisons: dict[str, GivenPreference] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    ratings: dict[str, Ratings] = field(default_factory=dict)


# ---- from a database -----------------------------------------------------------------------------


def judged_items(items: Sequence[Item], submissions: Sequence[Submission]) -> list[JudgedItem]:
    """The latest judgements of each annotator.

    Args:
      items: those to include.
      submissions: by time; those on other items are left out.
    """
    judged = {item.id: JudgedItem(item) for item in items}
    # active time by (item, annotator, page), so that revisions add to the time of the first version
    seconds: dict[tuple[str, str, str], float] = {}
    for submission in submissions:
        if submission.item not in judged:
            continue
        entry = judged[submission.item]
        if submission.seconds is not None:
            key = submission.item, submission.annotator, submission.page
            seconds[key] = seconds.get(key, 0.0) + submission.seconds
        if submission.page == "annotation":
            entry.annotations[submission.annotator] = submission.doc
        elif submission.page == "rating":
            entry.ratings[submission.annotator] = submission.doc["ratings"]
        else:
            comparison = GivenPreference(submission.doc["preference"], submission.shown)
            entry.comparisons[submission.annotator] = comparison
    for (item, _, page), total in seconds.items():
        judged[item].seconds.setdefault(page, []).append(total)
    return list(judged.values())


def judged_in_database(task: FeedbackTask, path: str) -> list[JudgedItem]:
    """The latest judgements of each annotator in a server's database."""
    study = read_fitting_study(path, task.schema)
    return judged_items(study.items, study.submissions)


# ---- from feedback files -------------------------------------------------------------------------


def judged_in_files(
    task: FeedbackTask, paths: Sequence[str], records: Sequence[str] = ()
) -> list[JudgedItem]:
    """The judgements in feedback files.

    Args:
      task: the task of the files.
      paths: one file for each annotator. Their rows are matched by their texts.
      records: the record.json of each of these files, or nothing.
    """
    if records and len(records) != len(paths):
        counts = f"{counted(len(records), 'record')} for {counted(len(paths), 'file')}"
        raise UserError(f"{counts}: give one record for each file, in the same order")
    files = [read_items(task, path) for path in paths]
    judged: dict[Hashable, JudgedItem] = {}
    first_of: dict[str, str] = {}  # the first file of each annotator whom the records name
    for i, (path, items) in enumerate(zip(paths, files)):
        contents = _contents(task, items)
        for content, item in zip(contents, items):
            judged.setdefault(content, JudgedItem(item))
        record = read_record(task.schema, records[i], len(items)) if records else None
        name = _recorded_name(record or ())
        first = first_of.setdefault(name, path) if name else path
        if first != path:
            print(f"{path}: by the annotator of {first}, so both count as one")
        _add_judgements([judged[content] for content in contents], first, items, record)
    return list(judged.values())


def _recorded_name(record: Sequence[Mapping[str, Any]]) -> str | None:
    """The `name_key` of the only annotator whom a record names, or None."""
    names = {name_key(name) for entry in record if isinstance(name := entry.get("annotator"), str)}
    return names.pop() if len(names) == 1 else None


def _contents(task: FeedbackTask, items: Sequence[Item]) -> list[Hashable]:
    """What identifies each item in all files: its content and the number of earlier copies.

    A file may have an item several times. Its second copy is then the second copy in the others.
    """
    copies: Counter[Hashable] = Counter()
    contents: list[Hashable] = []
    for item in items:
        content = task.content(item)
        contents.append((content, copies[content]))
        copies[content] += 1
    return contents


def _add_judgements(
    judged: Sequence[JudgedItem],
    annotator: str,
    items: Sequence[Item],
    record: Sequence[Mapping[str, Any]] | None,
) -> None:
    """Add an annotator's file to `judged`, which has an entry for each of its `items`."""
    for number, (entry, item) in enumerate(zip(judged, items)):
        recorded = record[number] if record else {"order": None, "seconds": {}}
        if item.feedback is not None:
            entry.annotations[annotator] = item.feedback
        if item.preference is not None:
            entry.comparisons[annotator] = GivenPreference(item.preference, recorded["order"])
        if item.ratings is not None:
            entry.ratings[annotator] = item.ratings
        for page, value in recorded["seconds"].items():
            if value is not None:
                entry.seconds.setdefault(page, []).append(float(value))


# ---- records of feedback files -------------------------------------------------------------------


def read_record(schema: Schema, path: str, count: int) -> list[Mapping[str, Any]]:
    """The entries of a record.json that a page saved for a feedback file of `count` rows.

    Entries of skipped items, which have no row, are left out.
    """
    entries = read_json(path)
    if isinstance(entries, list):
        entries = [entry for entry in entries if not _is_skip(entry)]
    if not isinstance(entries, list) or len(entries) != count:
        raise UserError(
            f"{path} does not belong to a file of {count} rows: download both files from the same"
            " page at the same time"
        )
    outputs = range(len(schema.fields.outputs))
    _, problems = read_each(
        enumerate(entries), lambda _, entry: read(RecordEntry, entry).fit(outputs), path
    )
    way_out = "Download the record again, from the same page as its file"
    refuse_rows(problems, "read as the record of a page", way_out)
    return entries


def read_skips(schema: Schema, path: str) -> list[Mapping[str, Any]]:
    """The entries of a record.json about skipped items: {id, annotator, page, skipped}.

    Raises:
      UserError: one is malformed.
    """
    entries = read_json(path)
    skips = [entry for entry in entries if _is_skip(entry)] if isinstance(entries, list) else []
    for number, skip in enumerate(skips):
        what = skip["skipped"]
        names = [skip.get("id"), skip.get("annotator"), skip.get("page")]
        is_whole = isinstance(what, dict) and all(isinstance(name, str) for name in names)
        texts: dict[str, str] = {}
        for key in ("reason", "text"):
            if is_whole and isinstance(what.get(key), str):
                texts[key] = what[key]
        if len(texts) < 2:
            raise UserError(f"{path}, skip {number}: it must have id, annotator, page and skipped")
        if skip["page"] not in schema.pages:
            raise UserError(f"{path}, skip {number}: the task has no page {skip['page']!r}")
        for key, reason in skip_problems(schema, texts):
            raise UserError(f"{path}, skip {number}, {key}: {reason}")
    return skips


def _is_skip(entry: Any) -> bool:
    return isinstance(entry, dict) and "skipped" in entry


class RecordEntry(Record):
    """An entry of a record.json. Only an explicit null means that the order is unknown."""

    order: list[int] | None
    seconds: dict[str, float | None]

    def fit(self, outputs: Sequence[int]) -> None:
        """Raise `RowError` if the order is not one of these outputs."""
        if self.order is not None and sorted(self.order) != list(outputs):
            raise RowError("order", f"must hold each of {list(outputs)} once, or be null")
