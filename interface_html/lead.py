"""The lead's page: progress, speed, quality, notes and open leases of a study, live.

`/lead` is served if `serve` runs with admin=true, which prints two links, each with its own token.
The page reads `GET /api/lead` every few seconds. Its one action releases a lease, which the second
token does not allow. There is no page without a token: annotators must not see results.
"""

import hmac
import json
import secrets
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import combinations
from statistics import mean, median
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from fgrlhf.configs.strict import StrictModel
from interface_html.adjudicate import items_to_adjudicate
from interface_html.annotator_pairs import pair_agreements
from interface_html.assignments import RefusedError
from interface_html.checks import Check, stored_checks
from interface_html.connections import reading
from interface_html.database import Database
from interface_html.format import Item
from interface_html.items import item_json
from interface_html.judged_items import JudgedItem, judged_items
from interface_html.languages import ENGLISH, Language
from interface_html.lead_items import item_list, item_view
from interface_html.reliability import ReliabilityReport, report
from interface_html.render import lead_html, page_with_items
from interface_html.schema import PageName, Schema
from interface_html.server import HTML
from interface_html.skips import Skip
from interface_html.stored import Study, misfit, stored_study
from interface_html.stored import Submission as Stored
from interface_html.submissions import submission_lines
from interface_html.submitted import is_given_on
from interface_html.tasks import FeedbackTask

HOUR = 3600
MOST_ITEMS = 200  # in the table; the counts are of all items
MOST_NOTES = 200  # in the table
MOST_DAYS = 100  # rows of the table of the pace
MOST_DECISIONS = 100  # pages for decisions that can be loaded at a time


class Release(StrictModel):
    assignment: int = Field(ge=0, lt=2**53)


class Decide(StrictModel):
    page: PageName


@dataclass(frozen=True)
class Tokens:
    """The tokens of the lead's page: `admin` may release leases, `reader` may only read."""

    admin: str
    reader: str


@dataclass(frozen=True)
class Note:
    """What an annotator wrote about an item, beside the judgement.

    Args:
      item: its id; of a hidden item, that of the gold row or of the repeated item.
      check: "gold" or "repeat" if the item is hidden.
      reason: the label of the reason why it was skipped; None if it was submitted.
      flagged: whether the annotator flagged it.
      text: the explanation of the skip, or the comment; "" without one.
      created: seconds since 1970.
    """

    item: str
    check: str | None
    page: str
    annotator: str
    reason: str | None
    flagged: bool
    text: str
    created: float


@dataclass(frozen=True)
class Open:
    """An assignment that is not submitted.

    Args:
      number: of the assignment.
      item, check: as in `Note`.
      annotator, page: who has it, and where.
      seconds_left: until the lease ends; negative if it has ended.
      has_draft: whether work is stored.
      skipped: whether the annotator has skipped it.
    """

    number: int
    item: str
    check: str | None
    annotator: str
    page: str
    seconds_left: float
    has_draft: bool
    skipped: bool


# ---- figures (pure) ------------------------------------------------------------------------------


def first_position(schema: Schema, comparisons: Sequence[Stored]) -> tuple[int, int, int]:
    """How often the output shown first won, the number of decided pairs, and that of ties."""
    won = 0
    decided = 0
    ties = 0
    for entry in comparisons:
        place = {output: position for position, output in enumerate(entry.shown or ())}
        for (first, second), value in zip(schema.pairs, entry.doc["preference"], strict=True):
            if value == 0:
                ties += 1
                continue
            if not place:  # the order is unknown
                continue
            decided += 1
            winner, loser = (first, second) if value == 1 else (second, first)
            won += place[winner] < place[loser]
    return won, decided, ties


def latest(submissions: Sequence[Stored]) -> list[Stored]:
    """The latest submission of each item, page and annotator."""
    found = {(entry.item, entry.page, entry.annotator): entry for entry in submissions}
    return list(found.values())


def annotator_summary(
    schema: Schema, page: PageName, submissions: Sequence[Stored], now: float
) -> dict[str, Any]:
    """The work of an annotator on a page: done items, pace, time, ties and first position."""
    of_page = latest(submissions)
    times: dict[str, float] = {}  # active seconds, by item: those of its revisions add up
    for entry in submissions:
        times[entry.item] = times.get(entry.item, 0.0) + (entry.seconds or 0.0)
    summary: dict[str, Any] = {
        "done": len(of_page),
        "last_hour": sum(now - entry.created <= HOUR for entry in of_page),
        "seconds": median(times.values()) if times else None,
        "ties": None,
        "first": None,
        "decided": None,
    }
    if page == "comparison":
        won, decided, ties = first_position(schema, of_page)
        pairs = decided + ties
        summary["ties"] = ties / pairs if pairs else None
        summary["first"] = won / decided if decided else None
        summary["decided"] = decided
    return summary


def pace(submissions: Sequence[Stored]) -> list[dict[str, Any]]:
    """The work of each annotator per day and page, the latest day first.

    An item belongs to the day (UTC) of its first submission, and so do the times of its revisions.

    Returns:
      `{day, annotator, page, items, untimed, hours, per_hour}`. `untimed` items have a submission
      without a time; `hours` is the active time of the others, and `per_hour` their number divided
      by it: None if no item has a time.
    """
    times: dict[tuple[str, str, str], list[float | None]] = {}
    begun: dict[tuple[str, str, str], float] = {}
    for entry in submissions:
        key = entry.item, entry.page, entry.annotator
        times.setdefault(key, []).append(entry.seconds)
        begun[key] = min(begun.get(key, entry.created), entry.created)
    days: dict[tuple[str, str, str], list[float | None]] = {}
    for (item, page, annotator), seconds in times.items():
        started = datetime.fromtimestamp(begun[item, page, annotator], UTC)
        known = [value for value in seconds if value]
        total = sum(known) if len(known) == len(seconds) else None
        days.setdefault((f"{started:%Y-%m-%d}", annotator, page), []).append(total)
    rows = []
    for day, annotator, page in sorted(days, key=lambda key: (key[1], key[2])):
        all_items = days[day, annotator, page]
        timed = [total for total in all_items if total is not None]
        hours = sum(timed) / HOUR
        rows.append(
            {
                "day": day,
                "annotator": annotator,
                "page": page,
                "items": len(all_items),
                "untimed": len(all_items) - len(timed),
                "hours": hours,
                "per_hour": len(timed) / hours if timed else None,
            }
        )
    return sorted(rows, key=lambda row: row["day"], reverse=True)


def item_summary(
    items: Sequence[Item], page: PageName, submissions: Sequence[Stored], per_item: int
) -> dict[str, Any]:
    """How many annotators have judged each item of the study on a page."""
    given = [item for item in items if is_given_on(item.row, page)]
    names: dict[str, list[str]] = {item.id: [] for item in given}
    for entry in latest(submissions):
        if entry.page == page and entry.item in names:
            names[entry.item].append(entry.annotator)
    counts = Counter(len(done) for done in names.values())
    rows = [{"item": item, "annotators": done} for item, done in names.items()]
    unfinished = [row for row in rows if len(row["annotators"]) < per_item]
    return {
        "total": len(given),
        "complete": len(rows) - len(unfinished),
        "by_count": {str(count): counts[count] for count in sorted(counts)},
        "unfinished": unfinished[:MOST_ITEMS],
    }


def known_name(item: str, hidden: Mapping[str, Check]) -> tuple[str, str | None]:
    """The id of an item that the lead knows, and what it is if it is hidden: see `Note`."""
    check = hidden.get(item)
    return (check.original, check.kind) if check else (item, None)


def notes(schema: Schema, study: Study) -> list[Note]:
    """The skips, flags and comments that count, the latest first."""
    labels = {reason.name: reason.label for reason in schema.skip_reasons}
    entries = []

    def add(entry: Stored | Skip, reason: str | None, flagged: bool, text: str) -> None:
        name, kind = known_name(entry.item, study.hidden)
        entries.append(
            Note(name, kind, entry.page, entry.annotator, reason, flagged, text, entry.created)
        )

    for skip in study.skips:
        # the schema may have changed since
        add(skip, labels.get(skip.reason, skip.reason), False, skip.text)
    for entry in latest(study.unskipped):
        flagged = bool(entry.doc.get("flag"))
        comment = entry.doc.get("comment", "")
        if flagged or comment:
            add(entry, None, flagged, comment)
    return sorted(entries, key=lambda note: -note.created)


def rating_agreement(schema: Schema, judged: Sequence[JudgedItem]) -> list[dict[str, Any]]:
    """For every two annotators who rated a common item, how far their ratings differ.

    Alpha with its interval, as in the agreement report, takes seconds: too long for a live page.

    Returns:
      `{first, second, rated, scales}`; a scale has the share of equal ratings, `same`, and the mean
      distance of the ratings, `distance`, over all outputs of the `rated` common items.
    """
    names = sorted({name for entry in judged for name in entry.ratings})
    rows = []
    for first, second in combinations(names, 2):
        common = [entry for entry in judged if {first, second} <= set(entry.ratings)]
        if not common:
            continue
        scales = []
        for scale in schema.ratings:
            distances = []
            for entry in common:
                for output in schema.fields.outputs:
                    one = entry.ratings[first][output][scale.name]
                    other = entry.ratings[second][output][scale.name]
                    distances.append(abs(one - other))
            same = sum(distance == 0 for distance in distances) / len(distances)
            scales.append({"label": scale.label, "same": same, "distance": mean(distances)})
        rows.append({"first": first, "second": second, "rated": len(common), "scales": scales})
    return rows


def summary(
    task: FeedbackTask, study: Study, opened: Sequence[Open], per_item: int, now: float
) -> dict[str, Any]:
    """The contents of the page. Hidden items count in the columns about gold items only.

    Args:
      task: the task.
      study: the contents of the database.
      opened: assignments that are not submitted.
      per_item: number of annotators for each item.
      now: the time, in seconds since 1970.
    """
    quality = gold_reliability(task, study)
    items = study.items
    submissions = study.submissions
    names = sorted({entry.annotator for entry in [*study.unskipped, *opened]})
    pages = []
    for page in task.schema.pages:
        rows = []
        for name in names:
            own = [e for e in submissions if e.page == page and e.annotator == name]
            row = {"name": name, **annotator_summary(task.schema, page, own, now)}
            mine = [entry for entry in opened if entry.page == page and entry.annotator == name]
            row["skipped"] = sum(entry.skipped and entry.check is None for entry in mine)
            gold = quality.annotators.get(name, {}).get(page) if quality else None
            row["gold"] = gold.accuracy if gold else None
            row["gold_labels"] = gold.labels if gold else 0
            rows.append(row)
        progress = item_summary(items, page, submissions, per_item)
        pages.append({"page": page, "items": progress, "annotators": rows})
    judged = judged_items(items, submissions)
    written = notes(task.schema, study)
    return {
        "title": task.schema.title,
        "per_item": per_item,
        "pages": pages,
        "pace": pace(submissions)[:MOST_DAYS],
        "agreement": [asdict(pair) for pair in pair_agreements(task.schema, judged)],
        "ratings": rating_agreement(task.schema, judged),
        "notes": {"total": len(written), "latest": [asdict(note) for note in written[:MOST_NOTES]]},
        "open": [asdict(entry) for entry in opened if not entry.skipped],
    }


def gold_reliability(task: FeedbackTask, study: Study) -> ReliabilityReport | None:
    """The annotators compared with the gold items; None without gold items."""
    if not study.gold:
        return None
    return report(task, study.all_items, study.unskipped, study.gold, study.repeats)


# ---- the database --------------------------------------------------------------------------------


def open_assignments(sql: sqlite3.Connection, now: float) -> list[Open]:
    """The assignments that are not submitted, those whose lease ended first at the top."""
    rows = sql.execute(
        "SELECT a.id, a.item, a.annotator, a.page, a.lease_until, d.assignment IS NOT NULL,"
        " a.skipped IS NOT NULL FROM assignments a LEFT JOIN drafts d ON d.assignment=a.id WHERE"
        " NOT a.done ORDER BY a.lease_until"
    ).fetchall()
    hidden = stored_checks(sql)
    assignments = []
    for number, item, annotator, page, until, draft, skip in rows:
        name, check = known_name(item, hidden)
        assignments.append(
            Open(number, name, check, annotator, page, until - now, bool(draft), bool(skip))
        )
    return assignments


def release(database: Database, number: int) -> None:
    """End the lease of an assignment; its annotator can still submit it.

    Raises:
      RefusedError: (404) there is no such open assignment.
    """

    def end(sql: sqlite3.Connection) -> None:
        query = "UPDATE assignments SET lease_until=0 WHERE id=? AND NOT done AND skipped IS NULL"
        if sql.execute(query, (number,)).rowcount != 1:
            raise RefusedError(404, "there is no such open assignment: reload the page")

    database.write(end)


# ---- the page ------------------------------------------------------------------------------------


async def _may_release(request: Request) -> bool:
    """Whether the sender of a request has the admin's token; others must have the reader's."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    tokens: Tokens = request.app.state.lead_tokens
    is_bearer = scheme.lower() == "bearer"
    if is_bearer and hmac.compare_digest(token.encode(), tokens.admin.encode()):
        return True
    if is_bearer and hmac.compare_digest(token.encode(), tokens.reader.encode()):
        return False
    raise RefusedError(401, "open a link of the lead's page that the server printed")


MayRelease = Annotated[bool, Depends(_may_release)]


def add_lead_page(
    app: FastAPI,
    task: FeedbackTask,
    database: Database,
    tokens: Tokens,
    language: Language = ENGLISH,
) -> None:
    """Serve the lead's page and its API to the owners of `tokens`."""
    app.state.lead_tokens = tokens
    html = lead_html(language).encode()
    path = str(database.path)

    @app.get("/lead", include_in_schema=False)
    def lead_page():
        return Response(html, media_type=HTML)

    @app.get("/api/lead")
    def lead_summary(may_release: MayRelease):
        now = database.clock()
        with reading(path) as sql:
            study = stored_study(sql)
            opened = open_assignments(sql, now)
        reason = misfit(task.schema, study)
        if reason is not None:
            raise RefusedError(409, reason)
        content = summary(task, study, opened, database.per_item, now)
        return JSONResponse({**content, "may_release": may_release})

    def study_now() -> Study:
        with reading(path) as sql:
            return stored_study(sql)

    @app.get("/api/lead/items")
    def lead_items(may_release: MayRelease):
        return JSONResponse({"items": item_list(task.schema, study_now())})

    @app.get("/api/lead/items/{number}")
    def lead_item(number: int, may_release: MayRelease):
        study = study_now()
        if not 0 <= number < len(study.items):
            raise RefusedError(404, "there is no such item: load the items again")
        return JSONResponse(item_view(task.schema, study, number))

    _add_decisions(app, task, study_now, language)

    @app.get("/api/lead/submissions")
    def lead_submissions(may_release: MayRelease):
        lines = [json.dumps(line) + "\n" for line in submission_lines(study_now())]
        name = f"{task.schema.task}-submissions.jsonl"
        return JSONResponse({"name": name, "text": "".join(lines)})

    @app.post("/api/lead/release")
    def lead_release(body: Release, may_release: MayRelease):
        if not may_release:
            raise RefusedError(403, "this link is for reading only: open the lead's own link")
        release(database, body.assignment)
        return JSONResponse({"released": body.assignment})


def _add_decisions(
    app: FastAPI, task: FeedbackTask, study_now: Callable[[], Study], language: Language
) -> None:
    """The pages on which the lead decides between the judgements of one item."""
    # by the last part of their addresses, which nobody can guess: a new tab sends no token
    decisions: dict[str, str] = {}

    @app.post("/api/lead/items/{number}/decide")
    def lead_decide(number: int, body: Decide, may_release: MayRelease):
        study = study_now()
        items = study.items[number : number + 1] if number >= 0 else []
        chosen = items_to_adjudicate(task.schema, items, study.submissions, [body.page])
        if not chosen:
            raise RefusedError(404, "there is nothing to decide here: load the items again")
        rows = [item_json(task, item) for item in chosen]
        key = secrets.token_urlsafe(24)
        decisions[key] = page_with_items(task, body.page, rows, language)
        for old in list(decisions)[:-MOST_DECISIONS]:
            del decisions[old]
        return JSONResponse({"address": f"/lead/decide/{key}"})

    @app.get("/lead/decide/{key}", include_in_schema=False)
    def decision_page(key: str):
        if key not in decisions:
            raise RefusedError(404, "this page is no longer kept: open it from the lead's page")
        return Response(decisions[key], media_type=HTML)
