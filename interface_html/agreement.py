"""How far annotators agree, with intervals over items. An undefined figure says why it is.

python -m interface_html.agreement db=feedback.sqlite out=agreement.json
python -m interface_html.agreement files=anna.json,ben.json records=anna_record.json,ben_record.json
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import read_json, write_json
from fgrlhf.reward_utils import load_segmenter
from fgrlhf.stats import Interval, bootstrap, ratio_bootstrap
from interface_html.database import read_database
from interface_html.export import labels_of
from interface_html.items import Item, read_items, row_with
from interface_html.rules import is_weak_order, sentences
from interface_html.schema import QA_SCHEMA, Schema, load_schema
from tasks.qa_feedback.feedback import FeedbackRow
from tasks.qa_feedback.reward_modeling.create_rm_files import factuality_tags, relevance_tags

Figure = Interval | str  # a number with its interval, or why there is none
DRAWS, SEED = 2000, 0


@dataclass
class Judged:
    """An item and what each annotator said. `comparisons`: preference, and the order shown where it
    is known.
    """

    item: Item
    annotations: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    comparisons: dict[str, tuple[list[int], list[int] | None]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


# ---- figures (pure) ------------------------------------------------------------------------------


def coincidences(units: Sequence[Sequence[Hashable]], values: Mapping[Hashable, int]) -> np.ndarray:
    """Krippendorff's coincidence matrix: o_ck = sum_u n_uc (n_uk - [c = k]) / (m_u - 1), units with
    m_u > 1 values.
    """
    found = np.zeros((len(values), len(values)))
    for unit in units:
        if len(unit) > 1:
            counts = np.bincount([values[value] for value in unit], minlength=len(values)).astype(
                float
            )
            found += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    return found


def alpha_of(matrix: np.ndarray) -> np.ndarray:
    """alpha = 1 - (n - 1) sum_{c != k} o_ck / sum_{c != k} n_c n_k, nominal; NaN where only one
    value is used.

    matrix: [..., C, C]. Krippendorff (2011), Computing Krippendorff's Alpha-Reliability.
    """
    margin = matrix.sum(-1)
    n = margin.sum(-1)
    observed = n - np.trace(matrix, axis1=-2, axis2=-1)
    expected = n**2 - (margin**2).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(expected > 0, 1 - (n - 1) * observed / expected, np.nan)


def alpha(units_of_items: Sequence[Sequence[Sequence[Hashable]]]) -> Figure:
    """Nominal alpha; its interval is over items, each with all its units."""
    used = {value for units in units_of_items for unit in units if len(unit) > 1 for value in unit}
    if not used:
        return "undefined: no item was judged by two annotators"
    if len(used) == 1:
        return (
            f"undefined: everybody said {next(iter(used))!r} everywhere, so no disagreement could"
            " be expected"
        )
    values = {value: i for i, value in enumerate(sorted(used, key=str))}
    known = [
        [[v for v in unit if v in values] for unit in units if len(unit) > 1]
        for units in units_of_items
    ]
    matrices = np.stack([coincidences(units, values) for units in known])
    draws = np.random.default_rng(SEED).integers(len(matrices), size=(DRAWS, len(matrices)))
    weights = np.stack([np.bincount(draw, minlength=len(matrices)) for draw in draws])
    replicates = alpha_of(np.tensordot(weights, matrices, axes=1))
    replicates = replicates[np.isfinite(replicates)]
    low, high = np.percentile(replicates, [2.5, 97.5]) if replicates.size else (np.nan, np.nan)
    return Interval(float(alpha_of(matrices.sum(0))), float(low), float(high))


def share(parts: Sequence[tuple[float, float]], nothing: str) -> Figure:
    """sum of firsts / sum of seconds, its interval over items; F1 is 2 matches / all marks."""
    if not sum(whole for _, whole in parts):
        return f"undefined: {nothing}"
    return ratio_bootstrap([part for part, _ in parts], [whole for _, whole in parts], DRAWS, SEED)


def overlap_matches(a: Sequence[Mapping], b: Sequence[Mapping]) -> int:
    """Marks of either that share a character with a mark of the same type of the other."""

    def hits(these, those):
        return sum(
            any(
                x["error type"] == y["error type"]
                and x["start"] < y["end"]
                and y["start"] < x["end"]
                for y in those
            )
            for x in these
        )

    return hits(a, b) + hits(b, a)


# ---- what is compared ----------------------------------------------------------------------------


def _pairs(
    judged: Sequence[Judged], compare: Callable[[Judged, Mapping, Mapping], tuple[float, float]]
):
    """For each item the sums of `compare` over the pairs of its annotators."""
    for one in judged:
        found = [compare(one, a, b) for a, b in combinations(one.annotations.values(), 2)]
        yield sum(x for x, _ in found), sum(y for _, y in found)


def _exact(_, a, b):
    keys = [{(e["error type"], e["start"], e["end"]) for e in doc["errors"]} for doc in (a, b)]
    return 2 * len(keys[0] & keys[1]), len(keys[0]) + len(keys[1])


def _overlap(_, a, b):
    return overlap_matches(a["errors"], b["errors"]), len(a["errors"]) + len(b["errors"])


def _missing(_, a, b):
    keys = [
        {
            (m["error type"], m["passage_id"], s)
            for m in doc["missing-info"]
            for s in m["sentence_id"]
        }
        for doc in (a, b)
    ]
    return 2 * len(keys[0] & keys[1]), len(keys[0]) + len(keys[1])


def _segments(schema: Schema, judged: Sequence[Judged]) -> dict[str, list]:
    """Labels of words, and of segments as the reward models see them, for each item and
    annotator.
    """
    made: dict[str, list] = {"words": []}
    segmenter = load_segmenter() if schema.task == "qa_feedback" else None
    for one in judged:
        text = one.item.row[schema.fields.text]
        labels = [labels_of(schema, text, doc) for doc in one.annotations.values()]
        starts = [
            i for i, c in enumerate(text) if not c.isspace() and (i == 0 or text[i - 1].isspace())
        ]
        made["words"].append([[label[i] or "none" for label in labels] for i in starts])
        if segmenter:
            rows = [
                FeedbackRow(row_with(schema, one.item, doc)) for doc in one.annotations.values()
            ]
            for name, tags in (
                ("sub-sentences (relevance)", relevance_tags),
                ("sentences (factuality)", factuality_tags),
            ):
                made.setdefault(name, []).append(list(zip(*(tags(row, segmenter) for row in rows))))
        else:
            units = [
                [next((x for x in label[a:b] if x), "none") for label in labels]
                for a, b in sentences(text)
            ]
            made.setdefault("sentences", []).append(units)
    return made


def report(schema: Schema, judged: Sequence[Judged]) -> dict[str, Figure]:
    """Every figure by name."""
    nobody, none = "no item was annotated by two annotators", "no item was compared"
    figures: dict[str, Figure] = {}
    alone = not any(len(one.annotations) > 1 for one in judged)

    def characters(one, a, b):
        first, second = (labels_of(schema, one.item.row[schema.fields.text], doc) for doc in (a, b))
        same = sum(x is not None and x == y for x, y in zip(first, second))
        return 2 * same, sum(x is not None for x in first) + sum(x is not None for x in second)

    for name, compare in (("exact", _exact), ("overlap", _overlap), ("characters", characters)):
        why = nobody if alone else "nobody marked an error"
        figures[f"span F1, {name}"] = share(list(_pairs(judged, compare)), why)
    for name, units in _segments(schema, judged).items():
        figures[f"alpha, {name}"] = alpha(units)
    if schema.missing:
        why = nobody if alone else "nobody found anything missing"
        figures["missing-info F1"] = share(list(_pairs(judged, _missing)), why)
    if schema.compares:
        figures |= _comparison_figures(schema, [one for one in judged if one.comparisons], none)
    seconds = [median(one.seconds) for one in judged if one.seconds]
    figures["active seconds"] = (
        bootstrap(seconds, np.median, DRAWS, SEED) if seconds else "undefined: no times were kept"
    )
    return figures


def _comparison_figures(schema: Schema, judged: Sequence[Judged], none: str) -> dict[str, Figure]:
    pairs, count = schema.pairs, len(schema.fields.answers)
    first, ties, broken = [], [], []
    for one in judged:
        said = list(one.comparisons.values())
        wins = decided = 0
        for preference, shown in said:
            place = {answer: k for k, answer in enumerate(shown or range(count))}
            for (i, j), value in zip(pairs, preference):
                decided += value != 0
                wins += value != 0 and (value == 1) == (place[i] < place[j])
        first.append((wins, decided))
        ties.append((sum(p.count(0) for p, _ in said), len(pairs) * len(said)))
        broken.append((sum(not is_weak_order(count, pairs, p) for p, _ in said), len(said)))
    units = [
        [list(unit) for unit in zip(*(p for p, _ in one.comparisons.values()))] for one in judged
    ]
    return {
        "preference alpha": alpha(units),
        "share won by the answer shown first": share(
            first, none if not judged else "every pair is a tie"
        ),
        "ties": share(ties, none),
        "no ranking with ties": share(broken, none),
    }


# ---- where it comes from -------------------------------------------------------------------------


def judged_in_database(schema: Schema, path: str | Path) -> list[Judged]:
    """What a server kept; of each annotator the latest."""
    task, items, submissions = read_database(path)
    if task != schema.task:
        raise UserError(
            f"{path} holds feedback of the task {task}, the schema is of {schema.task}:"
            " schema_file=..."
        )
    judged = {item.id: Judged(item) for item in items}
    for one in submissions:
        into = judged[one.item]
        into.seconds.append(one.seconds)
        if one.page == "annotation":
            into.annotations[one.annotator] = one.doc
        else:
            into.comparisons[one.annotator] = (one.doc["preference"], one.shown)
    return list(judged.values())


def read_record(schema: Schema, path: str, count: int) -> list[Mapping[str, Any]]:
    """The record.json that a page saved beside a feedback file of `count` rows."""
    entries, every = read_json(path), list(range(len(schema.fields.answers)))
    if not isinstance(entries, list) or len(entries) != count:
        raise UserError(
            f"{path} is not the record of a file of {count} rows: save both on the same page at"
            " once"
        )
    for number, entry in enumerate(entries):
        order = entry.get("order", 0) if isinstance(entry, dict) else 0
        if order is not None and (
            not isinstance(order, list) or sorted(map(str, order)) != sorted(map(str, every))
        ):
            raise UserError(
                f"{path}, row {number}: `order` must hold each of {every} once, or be null"
            )
        seconds = entry.get("seconds")
        if not isinstance(seconds, dict) or not all(
            isinstance(v, (int, float, type(None))) for v in seconds.values()
        ):
            raise UserError(f"{path}, row {number}: `seconds` must be an object of numbers")
    return entries


def judged_in_files(
    schema: Schema, paths: Sequence[str], records: Sequence[str] = ()
) -> list[Judged]:
    """One feedback file for each annotator, of the same rows in the same order; `records`: one for
    each of them.
    """
    if records and len(records) != len(paths):
        raise UserError(
            f"{len(records)} records for {len(paths)} files: name one for each, in the same order"
        )
    files = [read_items(schema, path) for path in paths]
    judged = [Judged(item) for item in files[0]]
    for path, items, record in zip(paths, files, records or [None] * len(paths)):
        if len(items) != len(judged):
            raise UserError(
                f"{path} has {len(items)} rows, {paths[0]} has {len(judged)}: they must be of the"
                " same items"
            )
        kept = (
            read_record(schema, record, len(items))
            if record
            else [{"order": None, "seconds": {}}] * len(items)
        )
        for number, (into, item, entry) in enumerate(zip(judged, items, kept)):
            if any(into.item.row[key] != item.row[key] for key in schema.row):
                raise UserError(
                    f"{path}, row {number}: its texts differ from those of {paths[0]}: not the same"
                    " items"
                )
            if "feedback" in item.row:
                into.annotations[path] = item.row["feedback"]
            if "preference" in item.row:
                into.comparisons[path] = (item.row["preference"], entry["order"])
            into.seconds += [
                float(value) for value in entry["seconds"].values() if value is not None
            ]
    return judged


class Settings(StrictModel):
    """Whose judgements are compared."""

    db: str | None = Field(None, description="the database that serve.sh writes")
    files: str = Field(
        "", description="or feedback files of the same rows, one for each annotator, with commas"
    )
    records: str = Field(
        "", description="record.json of each of these files: the orders shown, the active time"
    )
    out: str | None = Field(None, description="a JSON file for the figures")
    schema_file: str = Field(str(QA_SCHEMA), description="the task's schema")


def main() -> None:
    settings = settings_from(Settings)
    schema, paths = (
        load_schema(settings.schema_file),
        [path for path in settings.files.split(",") if path],
    )
    if bool(settings.db) == bool(paths):
        raise UserError(
            "name either a database (db=...) or feedback files (files=anna.json,ben.json)"
        )
    records = [path for path in settings.records.split(",") if path]
    judged = (
        judged_in_database(schema, settings.db)
        if settings.db
        else judged_in_files(schema, paths, records)
    )
    figures = report(schema, judged)
    for name, figure in figures.items():
        print(f"{name:<40} {figure}")
    if settings.out:
        plain = {
            name: figure if isinstance(figure, str) else figure.as_dict()
            for name, figure in figures.items()
        }
        write_json(settings.out, json.loads(json.dumps(plain).replace("NaN", "null")))


if __name__ == "__main__":
    run_main(main)
