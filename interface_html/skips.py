"""Items that an annotator skipped on a page, with the reason. templates/skip.js has the same rules.

A skip is `{reason, text}`: the name of one of `Schema.skip_reasons`, and an explanation, which may
be blank unless the reason needs one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fgrlhf.data.problems import Complaint, shown
from interface_html.connections import reading
from interface_html.schema import Schema
from interface_html.stored import Submission

LONGEST_TEXT = 1000


@dataclass(frozen=True)
class Skip:
    """An item that an annotator skipped on a page.

    Args:
      text: the explanation; "" without one.
      created: seconds since 1970.
    """

    item: str
    annotator: str
    page: str
    reason: str
    text: str
    created: float


def skip_problems(schema: Schema, skip: Mapping[str, str]) -> list[Complaint]:
    """The rules that a skip breaks; [] if it can be accepted."""
    reasons = {reason.name: reason for reason in schema.skip_reasons}
    if skip["reason"] not in reasons:
        names = ", ".join(reasons) or "the reasons: this task has none"
        return [("reason", f"{shown(skip['reason'])} is none of {names}")]
    if len(skip["text"]) > LONGEST_TEXT:
        return [("text", f"is too long: at most {LONGEST_TEXT} characters")]
    if reasons[skip["reason"]].needs_text and not skip["text"].strip():
        return [("text", "is blank: say what the reason is")]
    return []


def read_skips(path: str | Path) -> list[Skip]:
    """The skips in a server's database that were not undone, in the order of the assignments.

    Raises:
      UserError: the file does not exist or cannot be read.
    """
    with reading(path) as sql:
        columns = {row[1] for row in sql.execute("PRAGMA table_info(assignments)")}
        if "skipped" not in columns:  # a database of an earlier version
            return []
        rows = sql.execute(
            "SELECT item, annotator, page, skipped FROM assignments WHERE skipped IS NOT NULL"
            " ORDER BY id"
        ).fetchall()
    return [Skip(*names, **json.loads(skipped)) for *names, skipped in rows]


def without_skipped(submissions: Sequence[Submission], skips: Sequence[Skip]) -> list[Submission]:
    """The submissions on items that their annotators did not skip later."""
    skipped = {(skip.item, skip.annotator, skip.page) for skip in skips}
    kept = []
    for submission in submissions:
        if (submission.item, submission.annotator, submission.page) not in skipped:
            kept.append(submission)
    return kept
