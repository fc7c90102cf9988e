"""Toxic Spans (SemEval-2021 task 5), and the raw annotations from which it was made."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.records import Problem, RowError
from fgrlhf.data.importers.files import (
    list_in,
    numbered,
    optional_text,
    read_each,
    row_id,
    table,
    whole_number,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import NO_ERROR, JudgedResponse, Judgement
from fgrlhf.text_types import Prompt

TOXIC = "toxic"  # the aspect, and the label of spans without a type


def toxic_spans(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Toxic Spans, tsd_{train,trial,test}.csv: `spans`, a list of character indices, and `text`.

    Documented in github.com/ipavlopoulos/toxic_spans. Each run of consecutive indices becomes a
    span. The indices are what a majority of the raters marked, so no single annotator is named. A
    text without indices has no error. An index outside the text drops its run.
    """
    rows = table(path, ("spans", "text"), report)
    return read_each(rows, _list_row, report)


def _list_row(number: int, row: Mapping[str, str], report: Report) -> JudgedResponse | None:
    text = row["text"]
    if not report.has_response(number, "text", text):
        return None
    places = [whole_number("spans", place) for place in list_in("spans", row["spans"])]
    judgements = [] if places else [Judgement(TOXIC, NO_ERROR)]
    for start, end in runs(places):
        span = report.locate(number, "spans", text, None, start, end)
        if span is not None:
            judgements.append(Judgement(TOXIC, TOXIC, *span))
    return JudgedResponse(Prompt(str(number), ""), text, tuple(judgements))


def runs(places: list[int]) -> list[tuple[int, int]]:
    """Spans [start, end) of consecutive numbers: [3, 4, 7] is [(3, 5), (7, 8)]."""
    spans: list[tuple[int, int]] = []
    for place in sorted(set(places)):
        if spans and spans[-1][1] == place:
            spans[-1] = (spans[-1][0], place + 1)
        else:
            spans.append((place, place + 1))
    return spans


# ---- the raw annotations -------------------------------------------------------------------------

POSTS, ANNOTATIONS, SPANS = "comments.csv", "annotations.csv", "spans.csv"
ALL_TOXIC, NOT_TOXIC = "all toxic", "not toxic"


def toxic_spans_raw(path: str | Path, report: Report) -> list[JudgedResponse]:
    """The raw annotations of Toxic Spans: a folder with comments, annotations and spans (.csv).

    The same project publishes them. Each post becomes a row with the judgements of all raters: the
    spans with their types, and the boxes `all toxic` and `not toxic` as judgements of the whole
    post. Where a rater ticked both boxes, neither counts. A rater without a box or a span did not
    judge.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(
            f"{path} is not a folder: give the folder of {POSTS}, {ANNOTATIONS} and {SPANS}"
        )
    posts = table(folder / POSTS, ("comment_id", "comment_text"), report)
    annotations = table(
        folder / ANNOTATIONS, ("annotation", "comment_id", "worker", ALL_TOXIC, NOT_TOXIC), report
    )
    spans = table(folder / SPANS, ("annotation", "type", "start", "end"), report)
    _report_repeated(posts, POSTS, "comment_id", report)
    _report_repeated(annotations, ANNOTATIONS, "annotation", report)
    texts = {post["comment_id"]: post["comment_text"] for post in posts}
    judgements: dict[str, list[Judgement]] = {post: [] for post in texts}
    annotation_of = {annotation["annotation"]: annotation for annotation in annotations}
    marked = {span["annotation"] for span in spans}
    for number, annotation in enumerate(annotations):
        _add_box(number, annotation, marked, judgements, report)
    for number, row in numbered(spans, report):
        try:
            _add_raw_span(number, row, annotation_of, texts, judgements, report)
        except RowError as error:
            key = f"{SPANS}: {error.key}"
            report.malformed.append(Problem(number, key, error.reason))
    judged = []
    for number, (post, text) in enumerate(texts.items()):
        if report.has_response(number, f"{POSTS}: comment_text", text):
            prompt = Prompt(row_id(post, number), "")
            judged.append(JudgedResponse(prompt, text, tuple(judgements[post])))
    return judged


def _report_repeated(
    rows: Sequence[Mapping[str, str]], file: str, key: str, report: Report
) -> None:
    """Report rows whose id an earlier row of the file has too: other files refer to one row."""
    first_with: dict[str, int] = {}  # id -> the first row that has it
    for number, row in enumerate(rows):
        first = first_with.setdefault(row[key], number)
        if first != number:
            report.malformed.append(
                Problem(number, f"{file}: {key}", f"is that of row {first} too")
            )


def _add_box(
    number: int,
    annotation: Mapping[str, str],
    marked: Set[str],
    judgements: dict[str, list[Judgement]],
    report: Report,
) -> None:
    """Add the ticked box of an annotation to the judgements of its post.

    Args:
      marked: the annotations that have spans.
      judgements: post -> its judgements.
    """
    ticked = []
    for box in (ALL_TOXIC, NOT_TOXIC):
        value = annotation[box].strip().casefold()
        if value not in ("true", "false", ""):
            reason = f"must be True, False or blank, it is {shorten(repr(annotation[box]), 40)}"
            report.malformed.append(Problem(number, f"{ANNOTATIONS}: {box}", reason))
            return
        if value == "true":
            ticked.append(box)
    if len(ticked) == 2:
        report.losses["annotations with both boxes ticked"] += 1
        return
    if not ticked:
        if annotation["annotation"] not in marked:
            report.losses["annotations with neither a box nor a span"] += 1
        return
    post = annotation["comment_id"]
    if post not in judgements:
        key = f"{ANNOTATIONS}: comment_id"
        report.drop(number, key, f"there is no such post in {POSTS}", "annotations without a post")
        return
    annotator = optional_text("worker", annotation["worker"])
    judgements[post].append(Judgement(TOXIC, ticked[0], annotator=annotator))


def _add_raw_span(
    number: int,
    row: Mapping[str, str],
    annotation_of: Mapping[str, Mapping[str, str]],
    texts: Mapping[str, str],
    judgements: dict[str, list[Judgement]],
    report: Report,
) -> None:
    """Add a marked span to the judgements of its post.

    Args:
      annotation_of: id of an annotation -> its row.
      texts: post -> its text.
      judgements: post -> its judgements.
    """
    annotation = annotation_of.get(row["annotation"])
    if annotation is None:
        key = f"{SPANS}: annotation"
        reason = f"there is no such annotation in {ANNOTATIONS}"
        report.drop(number, key, reason, "spans without an annotation")
        return
    post = annotation["comment_id"]
    if post not in texts:
        key = f"{SPANS}: annotation"
        report.drop(number, key, f"its post is not in {POSTS}", "spans without a post")
        return
    start = whole_number("start", row["start"])
    end = whole_number("end", row["end"])
    span = report.locate(number, SPANS, texts[post], None, start, end)
    if span is not None:
        label = row["type"].strip() or TOXIC
        annotator = optional_text("worker", annotation["worker"])
        judgements[post].append(Judgement(TOXIC, label, *span, annotator=annotator))
