"""Items that an annotator skipped on a page, with the reason. templates/skip.js has the same rules.

A skip is `{reason, text}`: the name of one of `Schema.skip_reasons`, and an explanation, which may
be blank unless the reason needs one.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from fgrlhf.base.records import Complaint, shown
from interface_html.schema import Schema

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


def stored_skips(sql: sqlite3.Connection) -> list[Skip]:
    """The skips in a server's database that were not undone, in the order of the assignments."""
    rows = sql.execute(
        "SELECT item, annotator, page, skipped FROM assignments WHERE skipped IS NOT NULL ORDER"
        " BY id"
    ).fetchall()
    return [Skip(*names, **json.loads(skipped)) for *names, skipped in rows]
