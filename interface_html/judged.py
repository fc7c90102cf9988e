"""The annotations and ratings of a study as rows of judgements, which `fgrlhf data` reads.

An item that somebody annotated becomes a row with the judgements of all its annotators: the marks
with annotator, severity, reason, evidence and the suggestion's origin, then missing information.
A rating is a score; its scale is the aspect.
Spans that an annotator likes have the aspect `liked`. Who marked no error has the judgement
`no error`. `comments` and `corrections` of the row are by
annotator. The latest submission of each annotator counts; hidden items and submissions that their
annotator skipped afterwards are left out. If errors are marked in every output, or if the outputs
are rated, each output has a row of its own, and `output` is its index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import write_jsonl
from fgrlhf.base.records import RowError
from fgrlhf.data import span_rows
from fgrlhf.data.judgements import (
    JUDGEMENTS,
    LIKED_ASPECT,
    NO_ERROR,
    RESPONSE,
    SOURCE,
    FeedbackRows,
    JudgedResponse,
    Judgement,
    Losses,
    missing_evidence,
)
from fgrlhf.data.rows import Row
from fgrlhf.load import load_task
from interface_html.format import FEEDBACK_KEYS, Item
from interface_html.ratings import Ratings
from interface_html.reliability import latest_documents
from interface_html.row_format import RowFormat
from interface_html.rules import Document, errors_only
from interface_html.schema import Schema
from interface_html.stored import Study, Submission
from interface_html.suggestions import LIST
from interface_html.tasks import FeedbackTask

TYPE = "error type"
_NOUN = {"annotation": "an annotation", "rating": "a rating"}
COMMENTS, CORRECTIONS, OUTPUT = "comments", "corrections", "output"  # keys of a row


def feedback_rows(task: FeedbackTask) -> FeedbackRows:
    """How the task's feedback rows become judgements. Raises `UserError` if that is not known."""
    if isinstance(task.format, RowFormat):
        return span_rows.ROWS
    rows = load_task(task.schema.task).judgements
    if rows is None:
        raise UserError(
            f"the task {task.schema.task} has a format of its own and no `judgements` in its Task:"
            " its annotations cannot be written as judgements"
        )
    return rows


def annotation_judgements(
    schema: Schema, rows: FeedbackRows, annotator: str, doc: Document, output: int = 0
) -> list[Judgement]:
    """The judgements of an output in a valid annotation (interface_html/rules.py).

    Those of the source and missing information are with the first output.
    """
    errors = [error for error in doc["errors"] if error.get("output", 0) == output]
    judgements = [mark_judgement(schema, rows.marks, error, annotator) for error in errors]
    if not errors_only(schema, {**doc, "errors": errors})["errors"]:
        judgements.append(Judgement(rows.marks, NO_ERROR, annotator=annotator))
    for information in doc["missing-info"] if output == 0 else []:
        evidence = missing_evidence(information, TYPE)
        judgements.append(
            Judgement(rows.missing, information[TYPE], annotator=annotator, evidence=evidence)
        )
    return judgements


def mark_judgement(
    schema: Schema, aspect: str, mark: Mapping[str, Any], annotator: str | None = None
) -> Judgement:
    """A mark of a valid annotation: an error of this aspect, or a span that is liked."""
    return Judgement(
        LIKED_ASPECT if mark[TYPE] in schema.liked_kinds else aspect,
        mark[TYPE],
        mark["start"],
        mark["end"],
        mark.get("severity"),
        side=mark.get("side", RESPONSE),
        annotator=annotator,
        reason=mark.get("reason") or None,
        evidence=mark["explanation"] or None,
        origin=mark["origin"]["source"] if "origin" in mark else None,
    )


def output_judgements(
    schema: Schema,
    rows: FeedbackRows,
    annotations: Mapping[str, Document],
    ratings: Mapping[str, Ratings],
    output: int,
) -> list[Judgement]:
    """The judgements of an output by all annotators. Ratings are scores: each scale is an aspect.

    Args:
      annotations, ratings: of each annotator. Outputs without marks have no annotations.
    """
    key = schema.fields.outputs[output]
    judgements = []
    if key in schema.marked_outputs:
        for name, doc in annotations.items():
            judgements += annotation_judgements(schema, rows, name, doc, output)
    for name, values in ratings.items():
        for scale, value in values[key].items():
            judgements.append(Judgement(scale, score=float(value), annotator=name))
    return judgements


def judged_item(
    task: FeedbackTask,
    rows: FeedbackRows,
    item: Item,
    annotations: Mapping[str, Document],
    ratings: Mapping[str, Document],
    output: int = 0,
) -> JudgedResponse:
    """An output of an item with the judgements of its annotators.

    Args:
      annotations, ratings: the annotation and the rating of each annotator.
      output: the index of the output.

    Raises:
      UserError: the texts of the item are no row of judgements.
    """
    texts = {key: value for key, value in item.row.items() if key not in FEEDBACK_KEYS}
    try:
        row = Row(task.format.feedback_row(task.schema, Item(item.id, texts)), {})
        judged = rows.parse(row, 0)
    except RowError as error:
        raise UserError(f"item {item.id} cannot be written as judgements: {error}") from None
    values = {annotator: doc["ratings"] for annotator, doc in ratings.items()}
    judgements = output_judgements(task.schema, rows, annotations, values, output)
    comments = {}
    corrections = {}
    for annotator, doc in annotations.items():
        if doc.get("comment"):
            comments[annotator] = doc["comment"]
        if task.schema.correction:
            corrections[annotator] = doc["corrected-prediction"]
    key = task.schema.fields.outputs[output]
    source = judged.source
    if source is None and any(judgement.side == SOURCE for judgement in judgements):
        source = judged.prompt.text
    meta = dict(judged.prompt.meta)
    for name, texts in ((COMMENTS, comments), (CORRECTIONS, corrections)):
        if texts:
            meta[name] = texts
    if task.schema.mark_outputs or task.schema.ratings:
        meta[OUTPUT] = output
    prompt = replace(judged.prompt, id=item.id, meta=meta)
    response = item.row[key] if output else judged.response
    return JudgedResponse(prompt, response, tuple(judgements), source)


def judged_study(task: FeedbackTask, study: Study) -> tuple[list[JudgedResponse], Losses]:
    """The judged items of a study in their order, and what their rows cannot hold."""
    rows = feedback_rows(task)
    annotations = latest_documents(study.submissions, "annotation")
    ratings = latest_documents(study.submissions, "rating")
    judged = []
    losses = _left_out(study, study.submissions)
    for item in study.items:
        annotated, rated = annotations.get(item.id, {}), ratings.get(item.id, {})
        for output, key in enumerate(task.schema.fields.outputs):
            marked = annotated if key in task.schema.marked_outputs else {}
            if marked or rated:
                judged.append(judged_item(task, rows, item, marked, rated, output))
        for doc in annotated.values():
            losses["rejected suggestions"] += len(doc.get(LIST, []))
    return judged, +losses


def _left_out(study: Study, counting: Sequence[Submission]) -> Losses:
    """The submissions that are not the latest judgement of an item by an annotator on a page."""
    losses = Losses()
    latest = set()
    for submission in counting:
        if submission.page == "comparison":
            losses["submissions of the comparison page"] += 1
            continue
        key = submission.item, submission.annotator, submission.page
        losses[f"earlier versions of {_NOUN[submission.page]}"] += key in latest
        latest.add(key)
    losses["submissions of hidden or skipped items"] += len(study.all_submissions) - len(counting)
    return losses


def write_judgements(task: FeedbackTask, study: Study, out: str) -> int:
    """Write the rows, print what they do not hold, and return their number.

    Raises:
      UserError: nothing was annotated or rated, or an item's texts are no row of judgements.
    """
    judged, losses = judged_study(task, study)
    if not judged:
        raise UserError(
            "no item of the study was annotated or rated, so there are no judgements to write"
        )
    write_jsonl(out, [JUDGEMENTS.to_row(item) for item in judged])
    print(f"{out}: {counted(len(judged), 'row')} of judgements")
    for what, count in losses.most_common():
        print(f"  left out, {what}: {count:,}")
    return len(judged)
