"""Measure how far suggestions influence annotators.

    fgrlhf feedback anchoring NAME db=feedback.sqlite
    fgrlhf feedback anchoring NAME items=items_suggested.json files=anna.json,ben.json \\
        records=anna_record.json,ben_record.json

`fgrlhf feedback suggest` hides the suggestions of a random share of the items. Annotations of these
items show what annotators mark by themselves. Only items with at least one suggestion count. The
report has
  - for both arms, `shown` and `hidden`, the active seconds per item and per mark
  - for each annotator, the F1 of the marks with the suggestions in both arms, with the matching of
    the span F1 of the agreement. A large difference means that suggestions change the judgement
  - for each annotator, the share of the shown suggestions that were accepted as they are.
    Annotators who accept nearly everything, and more than the others, are named

All intervals are over prompts: items with one prompt are similar. Items without one are their own.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import write_json
from fgrlhf.configs.strict import FilePath
from fgrlhf.data.agreement.matching import overlap_matches, same_type
from fgrlhf.data.agreement.report import figure_values
from fgrlhf.data.agreement.responses import named_clusters
from fgrlhf.data.judgements import SPAN_ASPECT, Judgement
from fgrlhf.paired_stats import unpaired_ratio_interval
from fgrlhf.stats import Figure, Interval, f1_interval
from interface_html.agreement_figures import share
from interface_html.items import read_items
from interface_html.judged_items import read_record
from interface_html.outputs import OutputSettings
from interface_html.rules import errors_only, side_of
from interface_html.schema import Schema
from interface_html.stored import read_fitting_study
from interface_html.suggestions import ACCEPTED, LIST, SHOWN, verdicts
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of

ARMS = {"shown": True, "hidden": False}
NEARLY_ALL = 0.9  # the share from which an annotator accepts nearly everything


@dataclass(frozen=True)
class Annotation:
    """An annotator's latest work on an item with suggestions.

    Args:
      prompt: of the item; blank if it has none.
      cluster: what the item shares with others, such as a document.
      is_shown: whether the page showed the suggestions.
      suggestions: of the item, at least one.
      marks: the errors of the annotation in the texts for which the study has suggestions.
      verdicts: on each suggestion; empty if they were hidden.
      seconds: active time; None if unknown.
    """

    annotator: str
    item: str
    prompt: str
    is_shown: bool
    suggestions: Sequence[Mapping[str, Any]]
    marks: Sequence[Mapping[str, Any]]
    verdicts: Sequence[str | None]
    seconds: float | None
    cluster: str | None = None


@dataclass(frozen=True)
class Influence:
    """The influence of suggestions on an annotator.

    Args:
      shown, hidden: F1 of the marks with the suggestions, in both arms.
      difference: shown minus hidden.
      accepted: the share of shown suggestions that were accepted as they are.
      others: the same share of all other annotators together.
      accepts_nearly_all: see `accepts_nearly_all`.
    """

    annotator: str
    shown: Figure
    hidden: Figure
    difference: Figure
    accepted: Figure
    others: Figure
    accepts_nearly_all: bool

    def __str__(self) -> str:
        return (
            f"{self.annotator}: F1 with the suggestions {self.shown} shown, {self.hidden} hidden,"
            f" difference {self.difference}; accepted {self.accepted}, others {self.others}"
        )

    def as_dict(self) -> dict[str, Any]:
        figures = {
            "F1 shown": self.shown,
            "F1 hidden": self.hidden,
            "F1 difference": self.difference,
            "accepted": self.accepted,
            "accepted by others": self.others,
        }
        return {**figure_values(figures), "accepts nearly all": self.accepts_nearly_all}


# ---- figures (pure) ------------------------------------------------------------------------------


def f1_parts(annotation: Annotation) -> tuple[int, int]:
    """(matches, all) of the marks and the suggestions; the F1 of items is sum(matches) / sum(all).

    Those that overlap, of the same kind and in the same text, are matched one to one, as in the
    span F1 of the agreement.
    """
    marks: dict[str, list[Judgement]] = {}  # by the text
    suggested: dict[str, list[Judgement]] = {}
    for mark in annotation.marks:
        marks.setdefault(side_of(mark), []).append(_span(mark["error type"], mark))
    for one in annotation.suggestions:
        suggested.setdefault(side_of(one), []).append(_span(one["type"], one))
    matches = sum(
        overlap_matches(of_text, suggested.get(side, []), same_type)
        for side, of_text in marks.items()
    )
    return int(matches), len(annotation.marks) + len(annotation.suggestions)


def _span(kind: str, mark: Mapping[str, Any]) -> Judgement:
    return Judgement(SPAN_ASPECT, kind, mark["start"], mark["end"])


def arm_figures(annotations: Sequence[Annotation]) -> dict[str, dict[str, Figure | int]]:
    """For each arm, the number of annotations, and the active seconds per item and per mark."""
    figures: dict[str, dict[str, Figure | int]] = {}
    for arm, is_shown in ARMS.items():
        of_arm = [one for one in annotations if one.is_shown == is_shown]
        timed = [one for one in of_arm if one.seconds is not None]
        figures[arm] = {
            "annotations": len(of_arm),
            "active seconds per item": _ratio(
                timed, lambda one: (one.seconds, 1), "no times were recorded"
            ),
            "active seconds per mark": _ratio(
                timed, lambda one: (one.seconds, len(one.marks)), "no mark with a recorded time"
            ),
        }
    return figures


def _ratio(annotations: Sequence[Annotation], parts_of, undefined: str) -> Figure:
    """The ratio of the sums of `parts_of(annotation)`, a pair of numbers, over prompts."""
    return share([parts_of(one) for one in annotations], undefined, _units(annotations))


def _units(annotations: Sequence[Annotation]) -> list[Hashable]:
    """The unit of each annotation: its item's cluster or prompt, or the item if it has neither."""
    items = {one.item: one for one in annotations}
    names = named_clusters(
        [one.prompt for one in items.values()], [one.cluster for one in items.values()]
    )
    units = {}
    for item, name in zip(items, names, strict=True):
        units[item] = name if isinstance(name, str) else ("item", item)
    return [units[one.item] for one in annotations]


def f1_difference(annotations: Sequence[Annotation]) -> Figure:
    """F1 with the suggestions where they were shown, minus where they were hidden.

    Each item is in one of the arms, and the items of one prompt may be in both.
    """
    columns = {}
    units = {}
    for arm, is_shown in ARMS.items():
        places = [place for place, one in enumerate(annotations) if one.is_shown == is_shown]
        parts = [f1_parts(annotations[place]) for place in places]
        if not sum(whole for _, whole in parts):
            return f"undefined: no item with {arm} suggestions"
        columns[arm] = [part for part, _ in parts], [whole for _, whole in parts]
        units[arm] = [_units(annotations)[place] for place in places]
    clusters = units["shown"], units["hidden"]
    return unpaired_ratio_interval(columns["shown"], columns["hidden"], clusters)


def accepts_nearly_all(own: Interval, others: Interval) -> bool:
    """Whether an annotator accepts at least 0.9 of the suggestions, and more than the others.

    More: the two intervals do not overlap. With a good model all annotators accept much, so a
    large share alone says nothing.
    """
    return own.mean >= NEARLY_ALL and own.low > others.high


def influences(annotations: Sequence[Annotation]) -> list[Influence]:
    """The influence on each annotator, by name."""
    names = sorted({one.annotator for one in annotations})
    return [_influence(name, annotations) for name in names]


def _influence(name: str, annotations: Sequence[Annotation]) -> Influence:
    own = [one for one in annotations if one.annotator == name]
    rest = [one for one in annotations if one.annotator != name]
    accepted, others = accepted_share(own), accepted_share(rest)
    is_named = False
    if isinstance(accepted, Interval) and isinstance(others, Interval):
        is_named = accepts_nearly_all(accepted, others)
    return Influence(
        annotator=name,
        shown=_f1([one for one in own if one.is_shown]),
        hidden=_f1([one for one in own if not one.is_shown]),
        difference=f1_difference(own),
        accepted=accepted,
        others=others,
        accepts_nearly_all=is_named,
    )


def _f1(annotations: Sequence[Annotation]) -> Figure:
    parts = [f1_parts(one) for one in annotations]
    if not sum(whole for _, whole in parts):
        return "undefined: no item of this arm"
    return f1_interval(
        [matched for matched, _ in parts], [whole for _, whole in parts], _units(annotations)
    )


def accepted_share(annotations: Sequence[Annotation]) -> Figure:
    """The share of shown suggestions that were accepted as they are."""
    given = [one for one in annotations if one.verdicts]

    def parts(one: Annotation) -> tuple[int, int]:
        return one.verdicts.count(ACCEPTED), len(one.verdicts)

    return _ratio(given, parts, "no suggestion was shown")


# ---- sources of annotations ----------------------------------------------------------------------


def annotations_in_database(task: FeedbackTask, path: str) -> list[Annotation]:
    """The latest annotations of a server's database; active times add up over revisions."""
    study = read_fitting_study(path, task.schema, ["annotation"])
    items = {item.id: item for item in study.items}
    sides = suggested_sides(item.row for item in study.items)
    latest: dict[tuple[str, str], Annotation] = {}
    for one in study.submissions:
        row = items[one.item].row
        if one.page != "annotation" or not row.get(LIST):
            continue
        key = one.annotator, one.item
        earlier = latest[key].seconds if key in latest else None
        seconds = one.seconds if earlier is None else (one.seconds or 0.0) + earlier
        latest[key] = Annotation(
            annotator=one.annotator,
            item=one.item,
            prompt=row[task.schema.fields.title],
            is_shown=row.get(SHOWN, True),
            suggestions=row[LIST],
            marks=errors_in(task.schema, one.doc, sides),
            verdicts=verdicts(row, one.doc),
            seconds=seconds,
            cluster=items[one.item].cluster,
        )
    return list(latest.values())


def suggested_sides(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """The texts in which any of these items has suggestions.

    A study may have them in the first of several outputs only. Marks in the others, which no
    suggestion could match, do not count then.
    """
    return {side_of(suggestion) for row in rows for suggestion in row.get(LIST, [])}


def errors_in(schema: Schema, doc: Mapping[str, Any], sides: set[str]) -> list[Mapping[str, Any]]:
    """The errors of an annotation in the texts of these sides, without the spans that are liked."""
    errors = errors_only(schema, doc)["errors"]
    return [error for error in errors if side_of(error) in sides]


def annotations_in_files(
    task: FeedbackTask, items: str, paths: Sequence[str], records: Sequence[str]
) -> list[Annotation]:
    """The annotations in downloaded files.

    Args:
      task: the task of the files.
      items: the file of items with the suggestions.
      paths: feedback files, one for each annotator.
      records: the record.json of each; it says which item a row is, and the verdicts.
    """
    if len(records) != len(paths):
        counts = f"{counted(len(records), 'record')} for {counted(len(paths), 'file')}"
        raise UserError(f"{counts}: give one record for each file, in the same order")
    known = {item.id: item for item in read_items(task, items)}
    sides = suggested_sides(item.row for item in known.values())
    annotations = []
    for path, record in zip(paths, records):
        judged = read_items(task, path)
        for number, entry in enumerate(read_record(task.schema, record, len(judged))):
            feedback = judged[number].feedback
            decisions = _decisions(record, number, entry)
            if feedback is None or decisions is None:
                continue
            item = known.get(entry.get("id", ""))
            if item is None or task.content(item) != task.content(judged[number]):
                raise UserError(
                    f"{record}, row {number}: item {entry.get('id')} is not in {items}, or has"
                    " another text there. Give the file of items that the annotator had"
                )
            if not item.row.get(LIST):
                continue
            annotations.append(
                Annotation(
                    annotator=entry.get("annotator") or path,
                    item=item.id,
                    prompt=item.row[task.schema.fields.title],
                    is_shown=decisions["shown"],
                    suggestions=item.row[LIST],
                    marks=errors_in(task.schema, feedback, sides),
                    verdicts=decisions["verdicts"],
                    seconds=entry["seconds"].get("annotation"),
                    cluster=item.cluster,
                )
            )
    return annotations


def _decisions(record: str, number: int, entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The decisions in an entry of a record.json; None for an item without suggestions."""
    decisions = entry.get("suggestions")
    if decisions is None:
        return None
    is_valid = isinstance(decisions, dict) and isinstance(decisions.get("shown"), bool)
    if not is_valid or not isinstance(decisions.get("verdicts"), list):
        raise UserError(
            f"{record}, row {number}: `suggestions` must be an object with `shown` and `verdicts`,"
            " as the annotation page writes it. Download the record again"
        )
    return decisions


# ---- the program ---------------------------------------------------------------------------------


class AnchoringSettings(OutputSettings):
    """The annotations to compare."""

    task: str = Field(description=TASK_HELP)
    db: FilePath | None = Field(default=None, description="the server's database")
    items: str | None = Field(
        default=None, description="instead of db: the file of items with the suggestions"
    )
    files: str = Field(default="", description="feedback files, separated by commas")
    records: str = Field(default="", description="the record.json of each file")
    out: FilePath | None = Field(default=None, description="a JSON file to write the figures to")


def write_report(settings: AnchoringSettings) -> list[Influence]:
    """Print the figures, and write them to `out` if it is set.

    Raises:
      UserError: a file cannot be read, or no annotation is of an item with suggestions.
    """
    paths = [path for path in settings.files.split(",") if path]
    records = [path for path in settings.records.split(",") if path]
    has_files = bool(settings.items and paths)
    if bool(settings.db) == has_files:
        raise UserError(
            "set either a database (db=...), or the items with the suggestions and what was"
            " downloaded (items=... files=anna.json records=anna_record.json)"
        )
    task = feedback_of(settings.task)
    if settings.db:
        annotations = annotations_in_database(task, settings.db)
    else:
        annotations = annotations_in_files(task, str(settings.items), paths, records)
    if not annotations:
        raise UserError(
            "no annotation is of an item with suggestions. Add them to the items before they are"
            " annotated, with `fgrlhf feedback suggest`"
        )
    arms = arm_figures(annotations)
    by_annotator = influences(annotations)
    named = [one.annotator for one in by_annotator if one.accepts_nearly_all]
    for arm, figures in arms.items():
        for name, figure in figures.items():
            print(f"{f'suggestions {arm}: {name}':<45} {figure}")
    for one in by_annotator:
        print(f"  {one}")
    print(f"accept nearly everything, and more than the others: {', '.join(named) or 'nobody'}")
    if settings.out:
        content = {
            "arms": {arm: figure_values(figures) for arm, figures in arms.items()},
            "annotators": {one.annotator: one.as_dict() for one in by_annotator},
            "accept nearly all": named,
        }
        write_json(settings.out, content)
    return by_annotator
