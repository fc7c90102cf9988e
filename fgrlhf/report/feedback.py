"""The human feedback that the stages of a report used: its files, read without a task.

A row has spans, missing information and preferences in one of two forms, and ratings as an object
for each output. Every part is optional:

    {"spans": [{"start", "end", "label"}], "missing": [...], "preferences": [...],
     "ratings": [{"quality": 4}, ...]}
    {"feedback": {"errors": [{"start", "end", "error type"}], "missing-info": [...]},
     "preference": [...]}

Other files in the same folder:

    record.json           of feedback.json: the order in which outputs were shown, active seconds
    anna_record.json      the same of anna.json
    <file>.rounds.json    of a file of `fgrlhf feedback merge`: where each judgement comes from
    agreement.json        of `fgrlhf feedback agreement out=...`: its figures are shown unchanged
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import Any

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.base.files import read_json, read_jsonl
from fgrlhf.report.charts import Table, bounds, number

AGREEMENT = "agreement.json"
ROUNDS = ".rounds.json"
NO_LABEL = "without a label"


@dataclass(frozen=True)
class MarkedSpan:
    label: str
    length: int  # in characters


@dataclass(frozen=True)
class FeedbackRow:
    """The judgements in a row.

    Attributes:
      spans: None if the row is not annotated.
      missing: the labels of its missing information.
      preference: 1, 2 or 0 for each pair of outputs; None if they were not compared.
      order: the outputs in the order in which they were shown; None if that is not known.
      seconds: active time; None if it was not recorded.
      ratings: for each rated output its values by scale.
    """

    spans: list[MarkedSpan] | None
    missing: list[str]
    preference: list[int] | None
    order: list[int] | None
    seconds: float | None
    annotator: str | None
    ratings: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class FeedbackFile:
    """A feedback file, or the reason why it cannot be read.

    Attributes:
      agreement: agreement.json of its folder; {} if there is none.
      rounds: file of a round -> the rows with a judgement from it, if the file was merged.
    """

    path: Path
    rows: list[FeedbackRow]
    agreement: dict[str, Any] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    problem: str = ""


# ---- files ---------------------------------------------------------------------------------------


def feedback_files(folders: Iterable[Path]) -> list[FeedbackFile]:
    """The JSON files of the folders whose names contain `feedback`."""
    files = []
    for folder in folders:
        for path in sorted(folder.glob("*feedback*")):
            is_data = path.suffix in (".json", ".jsonl") and not path.name.endswith(ROUNDS)
            if is_data and not path.stem.endswith("record"):
                files.append(read_feedback_file(path))
    return files


def read_feedback_file(path: Path) -> FeedbackFile:
    """Read a file. Parts of a row that have another form are left out."""
    try:
        rows = _objects(path)
        records = _records(path, len(rows))
        agreement_path = path.with_name(AGREEMENT)
        agreement = read_json(agreement_path) if agreement_path.exists() else {}
        rounds = _rounds(path.with_name(f"{path.name}{ROUNDS}"))
    except UserError as error:
        return FeedbackFile(path, [], problem=shorten(error))
    if not isinstance(agreement, dict):
        agreement = {}
    feedback_rows = [_row(row, record) for row, record in zip(rows, records)]
    return FeedbackFile(path, feedback_rows, agreement, rounds)


def _objects(path: Path) -> list[dict[str, Any]]:
    """The objects in a JSON or JSONL file; a single object is a list of one."""
    rows = read_jsonl(path) if path.suffix == ".jsonl" else read_json(path)
    if isinstance(rows, dict):
        rows = [rows]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path.name} is not a list of rows")
    return rows


def _records(path: Path, count: int) -> list[dict[str, Any]]:
    """The record of every row. All are {} if there is no record with as many entries as rows."""
    name = "record.json" if path.stem == "feedback" else f"{path.stem}_record.json"
    record = path.with_name(name)
    entries = _objects(record) if record.exists() else []
    entries = [entry for entry in entries if "skipped" not in entry]  # a skipped item has no row
    return entries if len(entries) == count else [{}] * count


def _rounds(path: Path) -> dict[str, int]:
    """How many rows have a judgement from each round; {} if the file was not merged."""
    if not path.exists():
        return {}
    rows: Counter[str] = Counter()
    for origins in _objects(path):
        files = set()  # a round with several judgements in a row counts once
        for origin in origins.values():
            if _is_dict(origin) and origin.get("file"):
                files.add(str(origin["file"]))
        rows.update(files)
    return dict(rows)


def _row(row: Mapping[str, Any], record: Mapping[str, Any]) -> FeedbackRow:
    feedback = row.get("feedback")
    annotation = feedback if isinstance(feedback, dict) else row
    annotator = row.get("annotator") or record.get("annotator")
    return FeedbackRow(
        spans=_spans(annotation.get("spans", annotation.get("errors"))),
        missing=_missing(annotation.get("missing", annotation.get("missing-info"))),
        preference=_whole_numbers(row.get("preferences", row.get("preference"))),
        order=_whole_numbers(record.get("order")),
        seconds=_total_seconds(record.get("seconds")),
        annotator=annotator if isinstance(annotator, str) else None,
        ratings=_ratings(row.get("ratings")),
    )


def _spans(value: Any) -> list[MarkedSpan] | None:
    """The marked spans; None if the row is not annotated."""
    if not isinstance(value, list):
        return None
    return [
        MarkedSpan(_label(mark), mark["end"] - mark["start"]) for mark in value if _is_span(mark)
    ]


def _missing(value: Any) -> list[str]:
    """The labels of the missing information."""
    if not isinstance(value, list):
        return []
    return [_label(entry) for entry in value]


def _total_seconds(value: Any) -> float | None:
    """The sum of the active seconds on each page; None if none were recorded."""
    if not isinstance(value, dict):
        return None
    seconds = [time for time in value.values() if _is_number(time)]
    return sum(seconds) if seconds else None


def _ratings(value: Any) -> list[dict[str, float]]:
    """The ratings of a row by output; entries that are no ratings are left out."""
    if not isinstance(value, list):
        return []
    ratings = []
    for entry in value:
        if not _is_dict(entry):
            continue
        values = {str(scale): score for scale, score in entry.items() if _is_number(score)}
        if values:
            ratings.append(values)
    return ratings


def _is_span(mark: Any) -> bool:
    return (
        _is_dict(mark) and isinstance(mark.get("start"), int) and isinstance(mark.get("end"), int)
    )


def _label(entry: Any) -> str:
    if _is_dict(entry):
        for key in ("label", "error type", "type"):
            if entry.get(key):
                return str(entry[key])
    return NO_LABEL


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole_numbers(value: Any) -> list[int] | None:
    """The value if it is a list of whole numbers that is not empty, else None."""
    if not isinstance(value, list) or not value:
        return None
    return value if all(isinstance(entry, int) for entry in value) else None


# ---- the section ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeedbackView:
    """A file's numbers: facts by name, spans by kind, ratings by scale, annotators' agreement."""

    title: str
    problem: str
    facts: dict[str, str]
    kinds: Table
    ratings: Table
    agreement: Table


def feedback_views(files: Sequence[FeedbackFile]) -> list[FeedbackView]:
    views = []
    for file in files:
        views.append(
            FeedbackView(
                title=file.path.name,
                problem=file.problem,
                facts=_facts(file),
                kinds=_kinds(file.rows),
                ratings=_scales(file.rows),
                agreement=_agreement(file),
            )
        )
    return views


def _rounds_text(rounds: Mapping[str, int]) -> str:
    """`first.json (120 rows), second.json (80 rows)`."""
    return ", ".join(f"{file} ({counted(count, 'row')})" for file, count in rounds.items())


def _facts(file: FeedbackFile) -> dict[str, str]:
    """What was judged, by whom, and how long it took, as text by name."""
    rows = file.rows
    facts = {"rows": f"{len(rows):,}"} | _judgement_counts(rows)
    annotators = Counter(row.annotator for row in rows if row.annotator)
    names = [f"{name} ({count})" for name, count in annotators.most_common()]
    facts["annotators"] = ", ".join(names) or "not recorded"
    seconds = [row.seconds for row in rows if row.seconds is not None]
    facts["active time per row"] = "not recorded"
    if seconds:
        facts["active time per row"] = (
            f"{median(seconds):.0f} s, median of {counted(len(seconds), 'row')}"
        )
    if file.rounds:
        facts["rounds"] = _rounds_text(file.rounds)
    return facts


def _judgement_counts(rows: Sequence[FeedbackRow]) -> dict[str, str]:
    """How many rows are annotated, compared and rated; only of what occurs."""
    counts = {}
    annotated = [row.spans for row in rows if row.spans is not None]
    if annotated:
        marked = sum(bool(spans) for spans in annotated)
        counts["annotated"] = f"{len(annotated):,}, {marked:,} of them with a marked span"
    compared = [row for row in rows if row.preference is not None]
    if compared:
        values = [value for row in compared for value in row.preference or []]
        counts["compared"] = (
            f"{counted(len(compared), 'row')}, {counted(len(values), 'pair')},"
            f" {values.count(0):,} of them ties"
        )
    rated = [row.ratings for row in rows if row.ratings]
    if rated:
        outputs = sum(len(ratings) for ratings in rated)
        counts["rated"] = f"{counted(len(rated), 'row')}, {counted(outputs, 'output')}"
    wins, decided = first_position(compared)
    if decided:
        counts["won by the output shown first"] = (
            f"{wins / decided:.1%} of {decided} decided pairs (without a bias: about 50%)"
        )
    return counts


def first_position(rows: Sequence[FeedbackRow]) -> tuple[int, int]:
    """Decided pairs won by the output shown first, and all decided pairs.

    Pairs are those of `itertools.combinations`. Rows whose order is not known are left out.
    """
    wins = 0
    decided = 0
    for row in rows:
        if row.order is None or row.preference is None:
            continue
        pairs = list(combinations(sorted(row.order), 2))
        if len(pairs) != len(row.preference):
            continue
        for (i, j), preference in zip(pairs, row.preference):
            if preference == 1:
                winner, loser = i, j
            elif preference == 2:
                winner, loser = j, i
            else:
                continue
            decided += 1
            wins += row.order.index(winner) < row.order.index(loser)
    return wins, decided


def _kinds(rows: Sequence[FeedbackRow]) -> Table:
    """Spans by kind: how many, in how many rows, their lengths; then missing information."""
    lengths: dict[str, list[int]] = {}
    rows_with: Counter[str] = Counter()
    for row in rows:
        spans = row.spans or []
        for span in spans:
            lengths.setdefault(span.label, []).append(span.length)
        rows_with.update({span.label for span in spans})
    cells = []
    for label, of_label in sorted(lengths.items(), key=lambda item: -len(item[1])):
        marks = f"{len(of_label):,}"
        shortest_to_longest = f"{min(of_label)} to {max(of_label)}"
        middle = number(median(of_label))
        cells.append([label, marks, f"{rows_with[label]:,}", middle, shortest_to_longest])
    missing = Counter(label for row in rows for label in row.missing)
    for label, count in missing.most_common():
        rows_with_label = sum(label in row.missing for row in rows)
        cells.append([f"missing: {label}", f"{count:,}", f"{rows_with_label:,}", "–", "–"])
    return Table(["kind", "marks", "rows", "median length", "lengths"], cells)


def _scales(rows: Sequence[FeedbackRow]) -> Table:
    """Ratings by scale: how many, their mean and median, and their range."""
    ratings_of_scale: dict[str, list[float]] = {}
    for row in rows:
        for ratings_of_output in row.ratings:
            for scale, rating in ratings_of_output.items():
                ratings_of_scale.setdefault(scale, []).append(rating)
    cells = []
    for scale, ratings in ratings_of_scale.items():
        lowest_to_highest = f"{number(min(ratings))} to {number(max(ratings))}"
        averages = [number(mean(ratings)), number(median(ratings))]
        cells.append([scale, f"{len(ratings):,}", *averages, lowest_to_highest])
    return Table(["scale", "ratings", "mean", "median", "values"], cells)


def _agreement(file: FeedbackFile) -> Table:
    """The figures of agreement.json; entries that have another form are left out."""
    cells = []
    for name, figure in file.agreement.items():
        if _is_dict(figure) and _is_number(figure.get("mean")):
            low = figure.get("low")
            high = figure.get("high")
            interval = bounds(low, high) if _is_number(low) and _is_number(high) else "–"
            cells.append([name, number(figure["mean"]), interval])
        elif isinstance(figure, str):
            cells.append([name, "–", figure])
    return Table(["agreement", "value", "95% interval"], cells)
