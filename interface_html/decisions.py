"""The decisions of adjudicators, and how the judgements of exported rows came about.

A decision is stale if an annotator has submitted, changed or skipped a judgement of its item since:
then the adjudicator decided between other judgements than those that count now. Whoever has gone
back to the judgement that the adjudicator saw has changed nothing.

The `decided` of an exported row has, for each page whose judgement it has, one of
  single       one annotator judged the item; with policy=all, the row is that annotator's
  unanimous    several did, and all gave the same judgement
  majority     they differed: the annotation that agrees best, or the votes for each pair
  median       they differed: the median of each rating
  first, latest  they differed: one of the judgements, as `policy` says
  adjudicated  an adjudicator decided
  given        the judgement came with the item, and nobody submitted another
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fgrlhf.base.errors import UserError, counted, first_problems
from fgrlhf.data.names import name_key
from interface_html.differences import DECISIONS, differences
from interface_html.format import RATINGS, Item
from interface_html.schema import Schema
from interface_html.stored import Submission, read_fitting_study
from interface_html.submitted import decided_between, essence, is_adjudication, is_decided_on
from interface_html.tasks import FeedbackTask

DECIDED = "decided"  # the key of a row
Stale = Literal["refuse", "keep", "drop"]
Key = tuple[str, str]  # an item and a page
# in the row of an item, the key of the judgement of a page
JUDGEMENT_KEYS = {"annotation": "feedback", "comparison": "preference", "rating": RATINGS}


@dataclass(frozen=True)
class Decision:
    """A decision on an item and page.

    Args:
      submission: of the adjudicator.
      between: the revision of each annotator that it is about; None if that is not known.
    """

    submission: Submission
    between: Mapping[str, int] | None


Decisions = Mapping[Key, Decision]


# ---- stale decisions -----------------------------------------------------------------------------


def latest_revisions(submissions: Sequence[Submission]) -> dict[Key, dict[str, list[int]]]:
    """The latest revision of each annotator, by item and page, after earlier ones that equal it.

    Args:
      submissions: by time.
    """
    latest: dict[Key, dict[str, list[int]]] = {}
    judged: dict[tuple[str, str, str], dict[str, list[int]]] = {}
    for entry in submissions:
        alike = judged.setdefault((entry.item, entry.page, entry.annotator), {})
        given = (essence(entry.doc), entry.guideline, entry.guideline_sha256)
        revisions = alike.setdefault(json.dumps(given, sort_keys=True), [])
        revisions.append(entry.revision)
        latest.setdefault((entry.item, entry.page), {})[entry.annotator] = revisions
    return latest


def changes_since(decision: Decision, now: Mapping[str, Sequence[int]]) -> list[str]:
    """What annotators did after an adjudicator saw their judgements; [] if nothing changed.

    Args:
      decision: the decision.
      now: the latest revision of each annotator whose judgement counts, after those that equal it.
    """
    if decision.between is None:
        return ["the submissions that it is about are not named"]
    revisions = {name_key(name): alike for name, alike in now.items()}
    changes = []
    for name, revision in decision.between.items():
        alike = revisions.get(name_key(name))
        if alike is None:
            changes.append(f"the judgement of {name} no longer counts")
        elif revision not in alike:
            changes.append(f"{name} has submitted revision {alike[-1]} after revision {revision}")
    known = {name_key(name) for name in decision.between}
    for name in now:
        if name_key(name) not in known:
            changes.append(f"{name} has submitted too")
    return changes


def stale_decisions(decisions: Decisions, submissions: Sequence[Submission]) -> dict[Key, str]:
    """The stale decisions, each with what changed since."""
    latest = latest_revisions(submissions)
    stale = {}
    for key, decision in decisions.items():
        changes = changes_since(decision, latest.get(key, {}))
        if changes:
            stale[key] = "; ".join(changes)
    return stale


def decisions_that_count(
    decisions: Decisions, submissions: Sequence[Submission], stale: Stale, db: str
) -> tuple[Decisions, str]:
    """The decisions to export, and a text about the stale ones; "" if there are none.

    Args:
      decisions: all decisions.
      submissions: all that count, before any is left out for the weight of its annotator.
      stale: what to do with stale decisions.
      db: the database of the submissions, for the message.

    Raises:
      UserError: there are stale decisions and `stale` is `refuse`.
    """
    found = stale_decisions(decisions, submissions)
    if not found:
        return decisions, ""
    lines = [f"item {item}, {page}: {changes}" for (item, page), changes in found.items()]
    count = counted(len(found), "decision")
    verb = "is" if len(found) == 1 else "are"
    head = f"{count} {verb} about other submissions than those that count now:"
    text = "\n  ".join([head, *first_problems(lines)])
    if stale == "refuse":
        raise UserError(
            f"{text}\nLet the adjudicator decide them again (`fgrlhf feedback adjudicate` with"
            f" db={db} decided=... writes only what is not decided), and list both databases, the"
            " new one last; or set stale=drop to take the majority of what counts now, or"
            " stale=keep to take the decisions as they are"
        )
    if stale == "keep":
        return decisions, f"{text}\nstale=keep: they are exported"
    kept = {key: decision for key, decision in decisions.items() if key not in found}
    return kept, f"{text}\nstale=drop: the majority counts there"


def with_decisions(submissions: Sequence[Submission], decisions: Decisions) -> list[Submission]:
    """The submissions with one decision in place of those on each adjudicated item and page."""
    kept = [entry for entry in submissions if (entry.item, entry.page) not in decisions]
    return [*kept, *(decision.submission for decision in decisions.values())]


# ---- how a judgement came about ------------------------------------------------------------------


def decided_by(
    schema: Schema,
    page: str,
    documents: Sequence[Mapping[str, Any]],
    policy: str,
    is_adjudicated: bool,
) -> str:
    """How the judgement of a page came about: see the module's docstring.

    Args:
      schema: the task's schema.
      page: the page.
      documents: the judgements of the item, one of each annotator; at least one.
      policy: of the export.
      is_adjudicated: whether the document is an adjudicator's.
    """
    if is_adjudicated:
        return "adjudicated"
    if policy == "all" or len(documents) == 1:
        return "single"
    if are_same(schema, page, documents):
        return "unanimous"
    if policy in ("first", "latest"):
        return policy
    return "median" if page == "rating" else "majority"


def are_same(schema: Schema, page: str, documents: Sequence[Mapping[str, Any]]) -> bool:
    """Whether judgements of an item on a page are the same in all that rows hold."""
    if page == "annotation":
        return not differences(schema, documents)
    key = "preference" if page == "comparison" else "ratings"
    return all(doc[key] == documents[0][key] for doc in documents)


def are_disputed(schema: Schema, page: str, documents: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an adjudicator has something to decide between judgements of an item on a page."""
    is_any_acceptable = {bool(doc.get("all-bad")) for doc in documents}
    return len(is_any_acceptable) > 1 or not are_same(schema, page, documents)


def with_decided(schema: Schema, item: Item, decided: Mapping[str, str]) -> Item:
    """An item to export, with how the judgements that it has came about.

    Args:
      schema: the task's schema.
      item: with its judgements.
      decided: of the pages with submissions. The others keep what the item came with.

    Raises:
      UserError: the item came with a key `decided` of another meaning.
    """
    if DECIDED in schema.row:
        return item  # it is one of the texts
    given = item.row.get(DECIDED, {})
    if not isinstance(given, dict):
        raise UserError(
            f"item {item.id}: its row has a key `{DECIDED}` of its own, under which `export` says"
            " how judgements came about: rename it in the items"
        )
    judged = [page for page, key in JUDGEMENT_KEYS.items() if item.row.get(key) is not None]
    row = {key: value for key, value in item.row.items() if key != DECIDED}
    if judged:
        row[DECIDED] = {page: decided.get(page, given.get(page, "given")) for page in judged}
    return Item(item.id, row)


def merged_decided(
    schema: Schema, earlier: Mapping[str, Any], later: Mapping[str, Any]
) -> dict[str, Any]:
    """`{decided}` of the row of an item in which the judgements of a `later` row replace others.

    {} if neither row says how its judgements came about.
    """
    if DECIDED in schema.row:
        return {}
    said = [row[DECIDED] for row in (earlier, later) if isinstance(row.get(DECIDED), dict)]
    if not said:
        return {}
    merged = {}
    for page, key in JUDGEMENT_KEYS.items():
        row = later if key in later else earlier
        if key in row:
            given = row.get(DECIDED)
            merged[page] = given.get(page, "given") if isinstance(given, dict) else "given"
    return {DECIDED: merged}


# ---- files ---------------------------------------------------------------------------------------


def read_decisions(task: FeedbackTask, items: Sequence[Item], paths: str) -> Decisions:
    """The latest decision on each item and page in the databases of an adjudication.

    Args:
      task: the task.
      items: of the study.
      paths: databases, separated by commas; the decisions of later ones count.

    Raises:
      UserError: a file cannot be read, or its items are not from `adjudicate`, or not of this
        study.
    """
    contents = {item.id: task.content(item) for item in items}
    decisions: dict[Key, Decision] = {}
    for path in filter(None, paths.split(",")):
        decisions |= _decisions_in(task, contents, path)
    return decisions


def _decisions_in(
    task: FeedbackTask, contents: Mapping[str, Any], path: str
) -> dict[Key, Decision]:
    decided = read_fitting_study(path, task.schema)
    rows = {}
    for item in decided.items:
        if not is_adjudication(item.row):
            raise UserError(
                f"{path}: item {item.id!r} has no judgements to decide between: name the database"
                " of the items that `fgrlhf feedback adjudicate` wrote"
            )
        if contents.get(item.id) != task.content(item):
            raise UserError(
                f"{path}: item {item.id!r} is not in db=... with the same texts: name the database"
                " that its judgements are from"
            )
        rows[item.id] = item.row
    decisions = {}
    for entry in decided.submissions:
        row = rows[entry.item]
        if is_decided_on(row, entry.page):
            doc = {key: value for key, value in entry.doc.items() if key != DECISIONS}
            between = _revisions(decided_between(row, entry.page))
            decisions[entry.item, entry.page] = Decision(replace(entry, doc=doc), between)
    return decisions


def _revisions(entries: Collection[Mapping[str, Any]]) -> dict[str, int] | None:
    if not all({"annotator", "revision"} <= entry.keys() for entry in entries):
        return None
    return {entry["annotator"]: entry["revision"] for entry in entries}
