"""Measure the agreement of annotators, with intervals over items.

    fgrlhf feedback agreement NAME db=feedback.sqlite out=agreement.json
    fgrlhf feedback agreement NAME files=a.json,b.json \\
        records=a_record.json,b_record.json

Files are matched by the texts of their rows, so annotators may have judged different items, in any
order. For an undefined figure the report gives the reason.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.data import span_rows
from fgrlhf.data.agreement import (
    DRAWS,
    NOT_MARKED,
    SEED,
    Figure,
    Shared,
    Units,
    alpha,
    severity_figure,
)
from fgrlhf.data.judgements import RESPONSE
from fgrlhf.data.problems import counted
from fgrlhf.errors import UserError, run_main
from fgrlhf.files import read_json, write_json
from fgrlhf.stats import bootstrap, ratio_bootstrap
from interface_html.format import Item
from interface_html.items import read_items
from interface_html.judged import annotation_judgements
from interface_html.ratings import Ratings
from interface_html.rules import (
    character_labels,
    errors_only,
    is_weak_order,
    output_labels,
    output_side,
    side_of,
)
from interface_html.schema import Schema
from interface_html.stored import Submission, read_database
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

Document = Mapping[str, Any]  # an annotation: see interface_html/rules.py
NOT_SHARED = "no item was judged by two annotators"


@dataclass(frozen=True)
class Comparison:
    """An annotator's preference for each pair, and the order in which the outputs were shown.

    `shown` is None if the order is unknown.
    """

    preference: list[int]
    shown: list[int] | None


@dataclass
class Judged:
    """An item with the judgements of its annotators, by annotator, and their active times."""

    item: Item
    annotations: dict[str, Document] = field(default_factory=dict)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    ratings: dict[str, Ratings] = field(default_factory=dict)


# ---- figures (pure) ------------------------------------------------------------------------------


def share(parts: Sequence[tuple[float, float]], undefined: str) -> Figure:
    """The ratio sum(parts) / sum(wholes), with an interval over items.

    F1 is such a ratio: 2 matches / all marks. `undefined` is the reason to give if all wholes are
    0.
    """
    if not sum(whole for _, whole in parts):
        return f"undefined: {undefined}"
    return ratio_bootstrap([part for part, _ in parts], [whole for _, whole in parts], DRAWS, SEED)


def overlap_matches(first: Sequence[Mapping], second: Sequence[Mapping]) -> int:
    """The number of errors in both lists that overlap one of the same type in the other list."""
    return _overlapping(first, second) + _overlapping(second, first)


def _overlapping(errors: Sequence[Mapping], others: Sequence[Mapping]) -> int:
    return sum(any(_overlaps(error, other) for other in others) for error in errors)


def _overlaps(error: Mapping, other: Mapping) -> bool:
    same_type = error["error type"] == other["error type"]
    same_text = side_of(error) == side_of(other)
    return (
        same_type and same_text and error["start"] < other["end"] and other["start"] < error["end"]
    )


# ---- matches between two annotators of an item: (2 matches, all marks) ---------------------------


def _exact_spans(_: Item, a: Document, b: Document) -> tuple[int, int]:
    return _set_matches(_span_keys(a), _span_keys(b))


def _span_keys(doc: Document) -> set[tuple]:
    return {
        (error["error type"], side_of(error), error["start"], error["end"])
        for error in doc["errors"]
    }


def _overlapping_spans(_: Item, a: Document, b: Document) -> tuple[int, int]:
    matches = overlap_matches(a["errors"], b["errors"])
    return matches, len(a["errors"]) + len(b["errors"])


def _missing_sentences(schema: Schema, a: Document, b: Document) -> tuple[int, int]:
    return _set_matches(_sentence_keys(schema, a), _sentence_keys(schema, b))


def _sentence_keys(schema: Schema, doc: Document) -> set[tuple]:
    context = schema.fields.context
    if context is None:
        return set()
    keys = set()
    for info in doc["missing-info"]:
        for sentence in info[context.sentences]:
            keys.add((info["error type"], info[context.id], sentence))
    return keys


def _set_matches(first: set, second: set) -> tuple[int, int]:
    return 2 * len(first & second), len(first) + len(second)


def _characters(schema: Schema, item: Item, a: Document, b: Document) -> tuple[int, int]:
    first, second = output_labels(schema, item.row, a), output_labels(schema, item.row, b)
    same = sum(label is not None and label == other for label, other in zip(first, second))
    marked = sum(label is not None for label in [*first, *second])
    return 2 * same, marked


def _over_annotator_pairs(
    judged: Sequence[Judged], compare: Callable[[Item, Document, Document], tuple[int, int]]
) -> list[tuple[int, int]]:
    """For each item, the sums of `compare` over the pairs of its annotators."""
    sums = []
    for entry in judged:
        pairs = combinations(entry.annotations.values(), 2)
        results = [compare(entry.item, a, b) for a, b in pairs]
        sums.append((sum(part for part, _ in results), sum(whole for _, whole in results)))
    return sums


# ---- the report ----------------------------------------------------------------------------------


def report(task: FeedbackTask, judged: Sequence[Judged]) -> dict[str, Figure]:
    """All figures, by name."""
    figures: dict[str, Figure] = {}
    if task.schema.annotates:
        figures |= _annotation_figures(task, judged)
    if task.schema.compares:
        figures |= _comparison_figures(
            task.schema, [entry for entry in judged if entry.comparisons]
        )
    figures |= rating_figures(task.schema, [list(entry.ratings.values()) for entry in judged])
    seconds = [median(entry.seconds) for entry in judged if entry.seconds]
    if seconds:
        figures["active seconds"] = bootstrap(seconds, np.median, DRAWS, SEED)
    else:
        figures["active seconds"] = "undefined: no times were recorded"
    return figures


@dataclass(frozen=True)
class PairAgreement:
    """The agreement of two annotators on the items that both have judged.

    Args:
      first: name of an annotator.
      second: name of another one.
      annotated: the number of items that both have annotated.
      span_f1: F1 of their marked characters; None if neither has marked any.
      compared: the number of items that both have compared.
      same_preference: share of output pairs with the same preference; None without any.
    """

    first: str
    second: str
    annotated: int
    span_f1: float | None
    compared: int
    same_preference: float | None

    def __str__(self) -> str:
        parts = [
            f"{self.annotated} annotated by both, span F1 (characters) {_ratio_text(self.span_f1)}",
            f"{self.compared} compared by both, same preference"
            f" {_ratio_text(self.same_preference)}",
        ]
        return f"{self.first} and {self.second}: {'; '.join(parts)}"


def _ratio_text(ratio: float | None) -> str:
    return "undefined" if ratio is None else f"{ratio:.3f}"


def judged_counts(judged: Sequence[Judged]) -> dict[str, int]:
    """For each annotator, the number of items with a judgement by them."""
    counts: Counter[str] = Counter()
    for entry in judged:
        counts.update({*entry.annotations, *entry.comparisons, *entry.ratings})
    return dict(sorted(counts.items()))


def shared_counts(judged: Sequence[Judged]) -> dict[str, int]:
    """What the agreement is computed from: numbers of items, and of annotator pairs on them."""
    annotated = [len(entry.annotations) for entry in judged]
    compared = [len(entry.comparisons) for entry in judged]
    rated = [len(entry.ratings) for entry in judged]
    counts = {
        "items": len(judged),
        "annotators": len(judged_counts(judged)),
        "items annotated by two or more": sum(count > 1 for count in annotated),
        "items compared by two or more": sum(count > 1 for count in compared),
        "annotator pairs on annotated items": sum(math.comb(count, 2) for count in annotated),
        "annotator pairs on compared items": sum(math.comb(count, 2) for count in compared),
    }
    if any(rated):
        counts["items rated by two or more"] = sum(count > 1 for count in rated)
        counts["annotator pairs on rated items"] = sum(math.comb(count, 2) for count in rated)
    return counts


def pair_agreements(schema: Schema, judged: Sequence[Judged]) -> list[PairAgreement]:
    """The agreement of every two annotators, also of those without a common item."""
    return [
        _pair_agreement(schema, judged, first, second)
        for first, second in combinations(judged_counts(judged), 2)
    ]


def _pair_agreement(
    schema: Schema, judged: Sequence[Judged], first: str, second: str
) -> PairAgreement:
    both = {first, second}
    annotated = [entry for entry in judged if both <= set(entry.annotations)]
    compared = [entry for entry in judged if both <= set(entry.comparisons)]
    matches = 0
    marked = 0
    for entry in annotated:
        errors = _of_errors(schema, entry).annotations
        part, whole = _characters(schema, entry.item, errors[first], errors[second])
        matches += part
        marked += whole
    same = 0
    for entry in compared:
        a, b = entry.comparisons[first].preference, entry.comparisons[second].preference
        same += sum(value == other for value, other in zip(a, b))
    decisions = len(schema.pairs) * len(compared)
    return PairAgreement(
        first=first,
        second=second,
        annotated=len(annotated),
        span_f1=matches / marked if marked else None,
        compared=len(compared),
        same_preference=same / decisions if decisions else None,
    )


def _of_errors(schema: Schema, entry: Judged) -> Judged:
    """The item with the errors of its annotators, and without the spans that they like."""
    annotations = {}
    for annotator, doc in entry.annotations.items():
        annotations[annotator] = errors_only(schema, doc)
    return replace(entry, annotations=annotations)


def _annotation_figures(task: FeedbackTask, judged: Sequence[Judged]) -> dict[str, Figure]:
    schema = task.schema
    judged = [_of_errors(schema, entry) for entry in judged]
    is_shared = any(len(entry.annotations) > 1 for entry in judged)
    not_shared = "no item was annotated by two annotators"

    def f1(compare, nothing_marked: str) -> Figure:
        undefined = nothing_marked if is_shared else not_shared
        return share(_over_annotator_pairs(judged, compare), undefined)

    figures: dict[str, Figure] = {}
    no_error = "no annotator marked an error"
    figures["span F1, exact"] = f1(_exact_spans, no_error)
    figures["span F1, overlap"] = f1(_overlapping_spans, no_error)
    figures["span F1, characters"] = f1(
        lambda item, a, b: _characters(schema, item, a, b), no_error
    )
    for name, units in _units_by_name(task, judged).items():
        figures[f"alpha, {name}"] = alpha(units, nothing=NOT_SHARED)
    if schema.severities:
        figures["alpha, severities (ordinal)"] = _severity_figure(schema, judged)
    if schema.missing:
        figures["missing-info F1"] = f1(
            lambda _, a, b: _missing_sentences(schema, a, b),
            "no annotator marked missing information",
        )
    return figures


def _severity_figure(schema: Schema, judged: Sequence[Judged]) -> Figure:
    """As `fgrlhf data agreement`, of the errors marked at overlapping places."""
    shared = []
    for entry in judged:
        for index, key in enumerate(schema.marked_outputs):
            by_annotator = {}
            for annotator, doc in entry.annotations.items():
                by_annotator[annotator] = annotation_judgements(
                    schema, span_rows.ROWS, annotator, doc, index
                )
            shared.append(Shared(entry.item.row[key], by_annotator))
    return severity_figure(shared, [severity.name for severity in schema.severities])


def _units_by_name(task: FeedbackTask, judged: Sequence[Judged]) -> dict[str, list[Units]]:
    """For each item, the labels of its words and of the task's segments."""
    units: dict[str, list[Units]] = {"words": []}
    for entry in judged:
        annotations = list(entry.annotations.values())
        words = []
        for index, key in enumerate(task.schema.marked_outputs):
            words += _word_labels(entry.item.row[key], annotations, output_side(index))
        units["words"].append(words)
        segments = task.format.segment_labels(task.schema, entry.item, annotations)
        for name, labels in segments.items():
            units.setdefault(name, []).append(labels)
    return units


def _word_labels(
    text: str, annotations: Sequence[Document], side: str = RESPONSE
) -> list[list[str]]:
    """For each word, the label of its first character in each annotation."""
    labels_of_annotations = [character_labels(text, doc, side) for doc in annotations]
    words = []
    for i in _word_starts(text):
        words.append([labels[i] or NOT_MARKED for labels in labels_of_annotations])
    return words


def _word_starts(text: str) -> Iterator[int]:
    for i, character in enumerate(text):
        if not character.isspace() and (i == 0 or text[i - 1].isspace()):
            yield i


def rating_figures(schema: Schema, judged: Sequence[Sequence[Ratings]]) -> dict[str, Figure]:
    """Ordinal alpha of each scale. Each output of an item is a unit.

    Args:
      schema: the task's schema.
      judged: for each item, the ratings of its annotators.
    """
    not_shared = "no item was rated by two annotators"
    figures = {}
    for scale in schema.ratings:
        units_of_items = []
        for annotators in judged:
            units_of_items.append(
                [
                    [ratings[output][scale.name] for ratings in annotators]
                    for output in schema.fields.outputs
                ]
            )
        used = {value for units in units_of_items for unit in units for value in unit}
        # ordinal distances depend on used values only, and the matrix of all 101 percents is large
        figures[f"rating alpha, {scale.name}"] = alpha(units_of_items, sorted(used), not_shared)
    return figures


def _comparison_figures(schema: Schema, judged: Sequence[Judged]) -> dict[str, Figure]:
    """The figures of comparisons."""
    count = len(schema.fields.outputs)
    shown_first = []
    ties = []
    no_rankings = []
    units = []
    for entry in judged:
        comparisons = list(entry.comparisons.values())
        preferences = [comparison.preference for comparison in comparisons]
        shown_first.append(_wins_of_first(schema, comparisons))
        n_ties = sum(preference.count(0) for preference in preferences)
        ties.append((n_ties, len(schema.pairs) * len(preferences)))
        broken = [not is_weak_order(count, schema.pairs, values) for values in preferences]
        no_rankings.append((sum(broken), len(broken)))
        units.append(list(zip(*preferences)))
    nothing = "no item was compared"
    return {
        "preference alpha": alpha(units, nothing=NOT_SHARED),
        "share won by the output shown first": share(
            shown_first, "every pair is a tie" if judged else nothing
        ),
        "ties": share(ties, nothing),
        "no ranking with ties": share(no_rankings, nothing),
    }


def _wins_of_first(schema: Schema, comparisons: Sequence[Comparison]) -> tuple[int, int]:
    """The number of decided pairs that the output shown first has won, and of all decided pairs."""
    wins = 0
    decided = 0
    for comparison in comparisons:
        shown = comparison.shown or list(range(len(schema.fields.outputs)))
        place = {output: k for k, output in enumerate(shown)}
        for (i, j), value in zip(schema.pairs, comparison.preference):
            if value == 0:
                continue
            decided += 1
            winner, loser = (i, j) if value == 1 else (j, i)
            wins += place[winner] < place[loser]
    return wins, decided


# ---- sources of judgements -----------------------------------------------------------------------


def judged_items(items: Sequence[Item], submissions: Sequence[Submission]) -> list[Judged]:
    """The latest judgements of each annotator.

    Args:
      items: those to include.
      submissions: by time; those on other items are left out.
    """
    judged = {item.id: Judged(item) for item in items}
    seconds: dict[tuple[str, str, str], float] = {}  # revisions add to the time of the first
    for submission in submissions:
        if submission.item not in judged:
            continue
        entry = judged[submission.item]
        key = submission.item, submission.annotator, submission.page
        seconds[key] = seconds.get(key, 0.0) + submission.seconds
        if submission.page == "annotation":
            entry.annotations[submission.annotator] = submission.doc
        elif submission.page == "rating":
            entry.ratings[submission.annotator] = submission.doc["ratings"]
        else:
            comparison = Comparison(submission.doc["preference"], submission.shown)
            entry.comparisons[submission.annotator] = comparison
    for (item, _, _), total in seconds.items():
        judged[item].seconds.append(total)
    return list(judged.values())


def judged_in_database(task: FeedbackTask, path: str) -> list[Judged]:
    """The latest judgements of each annotator in a server's database."""
    study = read_database(path, task.schema.task)
    return judged_items(study.items, study.submissions)


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
    for number, entry in enumerate(entries):
        reason = _record_problem(schema, entry)
        if reason is not None:
            raise UserError(f"{path}, row {number}: {reason}")
    return entries


def _is_skip(entry: Any) -> bool:
    return isinstance(entry, dict) and "skipped" in entry


def _record_problem(schema: Schema, entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return "must be an object"
    every = list(range(len(schema.fields.outputs)))
    order = entry.get("order", 0)
    is_order = isinstance(order, list) and sorted(map(str, order)) == sorted(map(str, every))
    if order is not None and not is_order:
        return f"`order` must hold each of {every} once, or be null"
    seconds = entry.get("seconds")
    if not isinstance(seconds, dict):
        return "`seconds` must be an object of numbers"
    if not all(isinstance(value, int | float | None) for value in seconds.values()):
        return "`seconds` must be an object of numbers"
    return None


def judged_in_files(
    task: FeedbackTask, paths: Sequence[str], records: Sequence[str] = ()
) -> list[Judged]:
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
    judged: dict[Hashable, Judged] = {}
    for i, (path, items) in enumerate(zip(paths, files)):
        contents = _contents(task, items)
        for content, item in zip(contents, items):
            judged.setdefault(content, Judged(item))
        record = read_record(task.schema, records[i], len(items)) if records else None
        _add_judgements([judged[content] for content in contents], path, items, record)
    return list(judged.values())


def _contents(task: FeedbackTask, items: Sequence[Item]) -> list[Hashable]:
    """The content of each item, with a number: 1 for its second copy in the file, and so on."""
    copies: Counter[Hashable] = Counter()
    contents: list[Hashable] = []
    for item in items:
        content = task.content(item)
        contents.append((content, copies[content]))
        copies[content] += 1
    return contents


def _add_judgements(
    judged: Sequence[Judged],
    annotator: str,
    items: Sequence[Item],
    record: Sequence[Mapping[str, Any]] | None,
) -> None:
    for number, (entry, item) in enumerate(zip(judged, items)):
        recorded = record[number] if record else {"order": None, "seconds": {}}
        if item.feedback is not None:
            entry.annotations[annotator] = item.feedback
        if item.preference is not None:
            entry.comparisons[annotator] = Comparison(item.preference, recorded["order"])
        if item.ratings is not None:
            entry.ratings[annotator] = item.ratings
        for value in recorded["seconds"].values():
            if value is not None:
                entry.seconds.append(float(value))


# ---- the program ---------------------------------------------------------------------------------


class Settings(StrictModel):
    """The judgements to compare."""

    task: str = Field(description=TASK_HELP)
    db: str | None = Field(default=None, description="the server's database")
    files: str = Field(
        default="",
        description="instead of db: feedback files, one per annotator, separated by commas",
    )
    records: str = Field(
        default="", description="the record.json of each file: orders shown and active times"
    )
    out: str | None = Field(default=None, description="a JSON file to write the figures to")


def write_report(settings: Settings) -> dict[str, Figure]:
    """Print what was judged, the figures and the agreement of every two annotators.

    They are written to `out` if it is set.

    Raises:
      UserError: a file cannot be read, or neither or both of db and files are set.
    """
    paths = [path for path in settings.files.split(",") if path]
    records = [path for path in settings.records.split(",") if path]
    if bool(settings.db) == bool(paths):
        raise UserError(
            "set either a database (db=...) or feedback files (files=anna.json,ben.json)"
        )
    task = feedback_of(settings.task)
    if settings.db:
        judged = judged_in_database(task, settings.db)
    else:
        judged = judged_in_files(task, paths, records)
    figures = report(task, judged)
    shared = shared_counts(judged)
    by_annotator = judged_counts(judged)
    pairs = pair_agreements(task.schema, judged)
    for name, count in shared.items():
        print(f"{name:<40} {count}")
    for name, count in by_annotator.items():
        print(f"  {name}: {counted(count, 'item')}")
    for name, figure in figures.items():
        print(f"{name:<40} {figure}")
    for pair in pairs:
        print(f"  {pair}")
    if settings.out:
        content = {
            **{name: _figure_json(figure) for name, figure in figures.items()},
            "counts": shared,
            "items by annotator": by_annotator,
            "annotator pairs": [asdict(pair) for pair in pairs],
        }
        write_json(settings.out, content)
    return figures


def _figure_json(figure: Figure) -> Any:
    return figure if isinstance(figure, str) else figure.as_dict()


def main(argv: Sequence[str] | None = None) -> None:
    write_report(
        settings_from(Settings, argv, "usage: fgrlhf feedback agreement TASK [key=value ...]")
    )


if __name__ == "__main__":
    run_main(main)
