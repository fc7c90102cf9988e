"""Hidden items that check annotators: gold items, and repeats of an annotator's own items.

Every annotator gets each gold item, which has a known judgement, once on each judged page. A
repeated item comes back to the annotator who has submitted it. Both are stored as items of their
own, which the table `checks` names, and are given in place of the next item of the study at random
positions. While a server uses them, its API names all items by the number of their assignment and
sends only the texts of the schema, the turns of conversations, and the suggestions that are shown,
so that nothing tells them from others. Gold items must have suggestions if the items of the study
have them, and conversations if these have nothing else.
"""

import json
import random
import secrets
import sqlite3
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.seeds import derive_seed
from interface_html.conversations import MESSAGES, shown_turns
from interface_html.format import Item
from interface_html.schema import Schema
from interface_html.submitted import ADJUDICATION_KEYS, is_adjudication
from interface_html.suggestions import KEYS, LIST, OUTPUT, shown_suggestions

TABLE = """
CREATE TABLE IF NOT EXISTS checks(
  item TEXT PRIMARY KEY REFERENCES items(id),
  kind TEXT NOT NULL,
  original TEXT NOT NULL,
  pages TEXT NOT NULL)"""
# The items that an annotator was given, in this order: item, kind and original of a hidden item,
# and whether it is done or the annotator can still do it (see `Database.next`).
OWN_ITEMS = """
    SELECT
        a.item,
        c.kind,
        c.original,
        a.done OR (
            a.skipped IS NULL
            AND (
                a.lease_until > :now
                OR c.kind IS NOT NULL
                OR (
                    SELECT COUNT(*) FROM assignments b
                    WHERE b.page = :page AND b.item = a.item AND (b.done OR b.lease_until > :now)
                ) < :per_item
            )
        )
    FROM assignments a LEFT JOIN checks c ON c.item = a.item
    WHERE a.annotator = :annotator AND a.page = :page
    ORDER BY a.id
"""
# Whether `Database.next` can still give an item of the study to an annotator.
IS_FREE = """
    -- the annotator never had it on this page
    NOT EXISTS (
        SELECT 1 FROM assignments a
        WHERE a.page = :page AND a.item = items.id AND a.annotator = :annotator
    )
    -- it needs more annotators than have it or judged it
    AND (
        SELECT COUNT(*) FROM assignments a
        WHERE a.page = :page AND a.item = items.id AND (a.done OR a.lease_until > :now)
    ) < :per_item
    -- hidden gold and repeated items are given by the plan of the checks
    AND id NOT IN (SELECT item FROM checks)
    AND id NOT IN (SELECT item FROM withheld WHERE page = :page)
"""
FREE_ITEMS = f"SELECT COUNT(*) FROM items WHERE {IS_FREE}"
FREE_GOLD = """
    SELECT COUNT(*) FROM checks c
    WHERE
        kind = 'gold'
        AND instr(pages, :page)
        AND NOT EXISTS (
            SELECT 1 FROM assignments a
            WHERE a.page = :page AND a.item = c.item AND a.annotator = :annotator
        )
"""
# A repeated item was given at least so many items earlier, so that it is not remembered at once.
GAP = 10
SEED = "checks seed"  # key in `meta`: annotators must not be able to compute the positions

Kind = Literal["gold", "repeat"]


@dataclass(frozen=True)
class Plan:
    """How often hidden items are given.

    Args:
      gold_every: every so many items, at least 2, one is a gold item, while there are any.
      repeat_every: one repeated item among so many items, at least 2; None for no repeats.
    """

    gold_every: int = 10
    repeat_every: int | None = None


DEFAULT_PLAN = Plan()


@dataclass(frozen=True)
class Check:
    """A stored hidden item: its kind, and the id of the gold row or of the repeated item."""

    kind: Kind
    original: str


# ---- positions (pure) ----------------------------------------------------------------------------


def slot(seed: int, plan: Plan, position: int) -> Kind | None:
    """What an annotator gets at a position of their sequence; None for an item of the study.

    Each window of `gold_every` positions has a gold item at a random place, and each window of
    `repeat_every` positions a repeated one at a random place that no gold item has.

    Args:
      seed: of the annotator and the page.
      plan: how often hidden items are given.
      position: the number of items given earlier.
    """
    if position == _gold_position(seed, plan.gold_every, position // plan.gold_every):
        return "gold"
    if plan.repeat_every is not None:
        window = position // plan.repeat_every
        if position == _repeat_position(seed, plan.gold_every, plan.repeat_every, window):
            return "repeat"
    return None


@lru_cache(maxsize=4096)
def _gold_position(seed: int, every: int, window: int) -> int:
    return window * every + random.Random(derive_seed(seed, "gold", str(window))).randrange(every)


@lru_cache(maxsize=4096)
def _repeat_position(seed: int, gold_every: int, every: int, window: int) -> int | None:
    positions = []
    for position in range(window * every, (window + 1) * every):
        if position != _gold_position(seed, gold_every, position // gold_every):
            positions.append(position)
    if not positions:
        return None
    return random.Random(derive_seed(seed, "repeat", str(window))).choice(positions)


def items_to_come(
    seed: int,
    plan: Plan,
    ordinary: int,
    gold: int,
    position: int = 0,
    earlier: Sequence[int] = (),
) -> int:
    """The number of items that an annotator still gets who does all that they are given.

    Args:
      seed: of the annotator and the page.
      plan: how often hidden items are given.
      ordinary: number of items of the study that the annotator can get.
      gold: number of gold items that the annotator never had.
      position: the number of items given earlier.
      earlier: the positions of those items of the study among them that can be repeated.
    """
    if not gold and plan.repeat_every is None:
        return ordinary
    start = position
    not_repeated = deque(earlier)
    while True:
        kind = slot(seed, plan, position)
        if kind == "gold" and gold:
            gold -= 1
        elif kind == "repeat" and not_repeated and not_repeated[0] <= position - GAP:
            not_repeated.popleft()
        elif ordinary:
            not_repeated.append(position)
            ordinary -= 1
        else:
            return position - start
        position += 1


# ---- in a server's transactions ------------------------------------------------------------------


def sequence_seed(sql: sqlite3.Connection, annotator: str, page: str) -> int:
    """The seed of an annotator's sequence on a page."""
    (text,) = sql.execute("SELECT value FROM meta WHERE key=?", (SEED,)).fetchone()
    return derive_seed(int(text), "checks", annotator, page)


def create_table(sql: sqlite3.Connection) -> None:
    """Create the table of hidden items and the secret seed, unless the file has them."""
    sql.execute(TABLE)
    sql.execute("INSERT OR IGNORE INTO meta VALUES(?, ?)", (SEED, str(secrets.randbits(48))))


def add_gold(sql: sqlite3.Connection, items: Sequence[tuple[Item, Sequence[str]]]) -> int:
    """Store the gold items whose id is new. Returns their number.

    Args:
      sql: the connection.
      items: each with the pages whose judgement is known.

    Raises:
      UserError: a gold item with the same id and other texts or judgements is stored.
    """
    added = 0
    for item, pages in items:
        row = json.dumps(item.row)
        stored = sql.execute(
            "SELECT i.row FROM items i JOIN checks c ON c.item=i.id WHERE c.kind='gold' AND"
            " c.original=?",
            (item.id,),
        ).fetchone()
        if stored and stored[0] != row:
            raise UserError(
                f"gold item {item.id!r} is already in the database with other texts or judgements:"
                " give the new one another id"
            )
        if not stored:
            _add(sql, row, "gold", item.id, pages)
            added += 1
    return added


def _add(sql: sqlite3.Connection, row: str, kind: Kind, original: str, pages: Sequence[str]) -> str:
    (last,) = sql.execute("SELECT COALESCE(MAX(position), -1) FROM items").fetchone()
    name = f"check-{secrets.token_hex(12)}"
    sql.execute("INSERT INTO items VALUES(?, ?, ?)", (name, last + 1, row))
    sql.execute("INSERT INTO checks VALUES(?, ?, ?, ?)", (name, kind, original, " ".join(pages)))
    return name


def next_check(sql: sqlite3.Connection, plan: Plan, annotator: str, page: str) -> str | None:
    """The id of the hidden item that is due for an annotator, or None."""
    query = "SELECT COUNT(*) FROM assignments WHERE annotator=? AND page=?"
    (position,) = sql.execute(query, (annotator, page)).fetchone()
    seed = sequence_seed(sql, annotator, page)
    kind = slot(seed, plan, position)
    if kind is None:
        return None
    rng = random.Random(derive_seed(seed, "choice", str(position)))
    if kind == "gold":
        return _next_gold(sql, annotator, page, rng)
    return _next_repeat(sql, annotator, page, rng)


def _next_gold(
    sql: sqlite3.Connection, annotator: str, page: str, rng: random.Random
) -> str | None:
    """A gold item that the annotator never had; each annotator has another order."""
    rows = sql.execute(
        "SELECT item FROM checks c WHERE kind='gold' AND instr(pages, :page) AND NOT EXISTS (SELECT"
        " 1 FROM assignments a WHERE a.item=c.item AND a.annotator=:annotator AND a.page=:page)"
        " ORDER BY item",
        {"annotator": annotator, "page": page},
    ).fetchall()
    return rng.choice(rows)[0] if rows else None


def _next_repeat(
    sql: sqlite3.Connection, annotator: str, page: str, rng: random.Random
) -> str | None:
    """A new item that repeats a submitted item of the study from `GAP` items ago or earlier."""
    recent = "SELECT id FROM assignments WHERE annotator=:annotator AND page=:page"
    rows = sql.execute(
        "SELECT a.item, i.row FROM assignments a JOIN items i ON i.id=a.item WHERE"
        " a.annotator=:annotator AND a.page=:page AND a.done AND a.item NOT IN (SELECT item FROM"
        " checks) AND NOT EXISTS (SELECT 1 FROM checks c JOIN assignments b ON b.item=c.item WHERE"
        " c.kind='repeat' AND c.original=a.item AND b.annotator=:annotator AND b.page=:page) AND"
        f" a.id NOT IN ({recent} ORDER BY id DESC LIMIT :gap) ORDER BY a.id",
        # an item at position p - GAP has GAP - 1 items between it and position p
        {"annotator": annotator, "page": page, "gap": GAP - 1},
    ).fetchall()
    if not rows:
        return None
    original, row = rng.choice(rows)
    return _add(sql, row, "repeat", original, [page])


def expected_items(
    sql: sqlite3.Connection, plan: Plan, annotator: str, page: str, per_item: int, now: float
) -> int:
    """The number of items that an annotator has done on a page, and of those they can still get.

    Skipped items do not count, nor do items that enough others have judged or hold now.
    """
    names = {"annotator": annotator, "page": page, "per_item": per_item, "now": now}
    own = sql.execute(OWN_ITEMS, names).fetchall()
    repeated = {original for _, kind, original, _ in own if kind == "repeat"}
    kept = 0
    repeatable = []
    for position, (item, kind, _, is_kept) in enumerate(own):
        kept += is_kept
        if is_kept and kind is None and item not in repeated:
            repeatable.append(position)
    (ordinary,) = sql.execute(FREE_ITEMS, names).fetchone()
    (gold,) = sql.execute(FREE_GOLD, names).fetchone()
    seed = sequence_seed(sql, annotator, page)
    return kept + items_to_come(seed, plan, ordinary, gold, len(own), repeatable)


# ---- in the API ----------------------------------------------------------------------------------


def uniform_item(schema: Schema, number: int, item: dict[str, Any]) -> dict[str, Any]:
    """An item as the API sends it while there are hidden items.

    Items whose suggestions are hidden look like those without. A title that the pages show in turns
    has its turns, also if they are only in its text.

    Args:
      schema: has the keys of the texts; files may have more keys, which gold rows lack.
      number: of the assignment, as the item's id.
      item: the item with all keys.
    """
    content: dict[str, Any] = {"id": str(number)}
    shown_keys = (*schema.row, *ADJUDICATION_KEYS) if is_adjudication(item) else schema.row
    for key in shown_keys:
        if key in item:
            content[key] = item[key]
    turns = shown_turns(schema, item)
    if turns and MESSAGES not in schema.row:
        content[MESSAGES] = turns
    suggestions = shown_suggestions(item)
    if suggestions:
        keys = (*KEYS, OUTPUT)
        content[LIST] = [{key: one[key] for key in keys if key in one} for one in suggestions]
    return content


# ---- when a server starts ------------------------------------------------------------------------


def gold_tell(schema: Schema, items: Sequence[Item], gold: Sequence[Item]) -> str | None:
    """What annotators could tell gold items by, with the remedy; None if there is nothing.

    Args:
      schema: the task's schema.
      items: of the study; not empty.
      gold: the gold items.
    """
    if not gold:
        return None
    if any(is_adjudication(item.row) for item in items):
        return (
            "items to adjudicate show what others submitted, which gold items lack: serve them"
            " without gold=, in a database of their own"
        )
    have_turns = {bool(shown_turns(schema, item.row)) for item in items}
    have_suggestions = any(LIST in item.row for item in items)
    have_shown = {bool(shown_suggestions(item.row)) for item in items}
    sources = {name for item in items for name in _sources(item)}
    remedy = "make both files with `fgrlhf feedback suggest`, from the same models"
    for item in gold:
        name = f"gold item {item.id!r}"
        is_in_turns = bool(shown_turns(schema, item.row))
        if is_in_turns not in have_turns:
            forms = ["a text", "a conversation"]
            shown = f"{name} shows its `{schema.fields.title}` as {forms[is_in_turns]}"
            if is_in_turns:
                return f"{shown}, but no item of the study does: use gold items with texts"
            return (
                f"{shown}, but every item of the study shows a conversation: use gold items with"
                " conversations"
            )
        if have_suggestions and LIST not in item.row:
            return f"{name} has no suggestions, but items of the study have: {remedy}"
        is_shown = bool(shown_suggestions(item.row))
        if is_shown not in have_shown:
            shows, others = ("shows", "no item") if is_shown else ("shows no", "every item")
            return (
                f"{name} {shows} suggestions, but {others} of the study shows any: {remedy} and"
                " with the same share"
            )
        unknown = sorted(_sources(item) - sources)
        if unknown:
            return (
                f"{name} shows a suggestion of {unknown[0]!r}, which is the source of no suggestion"
                f" in the study: {remedy}"
            )
    return None


def _sources(item: Item) -> set[str]:
    """The sources of the suggestions that an item shows."""
    return {suggestion["source"] for suggestion in shown_suggestions(item.row)}


# ---- in the programs -----------------------------------------------------------------------------


def stored_checks(sql: sqlite3.Connection) -> dict[str, Check]:
    """The hidden items in a database, by id."""
    rows = sql.execute("SELECT item, kind, original FROM checks").fetchall()
    return {item: Check(kind, original) for item, kind, original in rows}


def left_out_text(hidden: Mapping[str, Check]) -> str:
    """What an export leaves out because of hidden items; "" if there are none."""
    counts = Counter(check.kind for check in hidden.values())
    if not counts:
        return ""
    return (
        f"; left out {counted(counts['gold'], 'gold item')} and"
        f" {counted(counts['repeat'], 'repeated item')}"
    )
