"""qa-feedback rows as judgements, and back: the published files are reproduced byte for byte.

The errors of prediction 1 become judgements of the aspect `errors`; an empty list of them becomes
the judgement `no error`. Missing information becomes judgements of the whole response, of the
aspect `missing-info`, with its sentences as evidence. All other parts of a row are kept.

The published rows have no ids, so a judged response has the number of its row as its id. A row's
own id that looks like such a number, or is no text, is kept in `Prompt.meta` too.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import shorten
from fgrlhf.base.records import AnyText, Record, Text, check_list, check_object, check_text, read
from fgrlhf.data.format import span_in
from fgrlhf.data.judgements import (
    NO_ERROR,
    FeedbackRows,
    JudgedResponse,
    Judgement,
    Losses,
    missing_evidence,
    missing_places,
)
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.feedback import ERRORS, MISSING, error_json

TYPE = "error type"
RESPONSE = "prediction 1"
FEEDBACK = "feedback"
ROW_ID = "row id"  # key of `Prompt.meta`
# the order of the published files; `gold` is the prompt's reference
TEXT_KEYS = ("question", "passages", "gold", *(f"prediction {i}" for i in range(1, 5)))


def parse(row: Row, number: int) -> JudgedResponse:
    """A row of a feedback file. Raises `RowError` if it is malformed."""
    question = row.text("question")
    response = row.text(RESPONSE)
    judgements: list[Judgement] = []
    kept: dict[str, Any] = {}
    if row.has(FEEDBACK):
        feedback = check_object(FEEDBACK, row.get(FEEDBACK))
        for i, value in enumerate(_list(feedback, ERRORS)):
            judgements.append(_error(f"{FEEDBACK}.{ERRORS}[{i}]", value, response))
        if ERRORS in feedback and not judgements:
            judgements.append(Judgement(ERRORS, NO_ERROR))
        for i, value in enumerate(_list(feedback, MISSING)):
            judgements.append(_missing(f"{FEEDBACK}.{MISSING}[{i}]", value))
        others = {key: value for key, value in feedback.items() if key not in (ERRORS, MISSING)}
        kept[FEEDBACK] = others  # also if it is empty: the row was judged
    gold = row.get("gold")
    references = (gold,) if isinstance(gold, str) and gold.strip() else ()
    name = row.get("id")
    if name is not None and (not isinstance(name, str) or _is_row_number(name)):
        kept[ROW_ID] = name
    rest = row.rest()
    if gold is not None and not references:
        rest["gold"] = gold
    prompt_id = str(number) if name is None else str(name)
    prompt = Prompt(prompt_id, question, references, {**rest, **kept})
    return JudgedResponse(prompt, response, tuple(judgements))


def _is_row_number(prompt_id: str) -> bool:
    """Whether an id is the number of a row as Python prints it: `10`, but not `010`."""
    is_number = prompt_id.isascii() and prompt_id.isdigit()
    return is_number and (prompt_id == "0" or not prompt_id.startswith("0"))


def _list(feedback: Mapping[str, Any], key: str) -> list[Any]:
    return check_list(f"{FEEDBACK}.{key}", feedback.get(key, []))


class _Error(Record, extra="forbid"):
    label: Text = Field(alias=TYPE)
    explanation: AnyText = ""
    start: int
    end: int
    severity: Text | None = None


def _error(key: str, value: Any, response: str) -> Judgement:
    error = read(_Error, value, key)
    start, end = span_in(key, error.start, error.end, response)
    evidence = error.explanation or None
    return Judgement(ERRORS, error.label, start, end, error.severity, evidence=evidence)


def _missing(key: str, value: Any) -> Judgement:
    info = check_object(key, value)
    label = check_text(f"{key}.{TYPE}", info.get(TYPE))
    return Judgement(MISSING, label, evidence=missing_evidence(info, TYPE))


def to_row(judged: JudgedResponse) -> tuple[dict[str, Any], Losses]:
    """The row of a feedback file, with its keys in the published order, and what it cannot hold.

    An id that is the number of a row is not written, except if the row had it. `feedback` always
    has both lists, since the format needs them.
    """
    losses = Losses()
    meta = dict(judged.prompt.meta)
    values = {"question": judged.prompt.text, RESPONSE: judged.response}
    if judged.prompt.references:
        values["gold"] = judged.prompt.references[0]
    losses["further references"] += max(len(judged.prompt.references) - 1, 0)
    losses["source texts"] += judged.source is not None
    row: dict[str, Any] = {}
    if ROW_ID in meta:
        row["id"] = meta.pop(ROW_ID)
    elif not _is_row_number(judged.prompt.id):
        row["id"] = judged.prompt.id
    for key in TEXT_KEYS:
        if key in values:
            row[key] = values[key]
        elif key in meta:
            row[key] = meta[key]
    errors = []
    missing = []
    was_judged = False
    for judgement in judged.judgements:
        if (judgement.aspect, judgement.label, judgement.span) == (ERRORS, NO_ERROR, None):
            was_judged = True
            losses["annotator"] += judgement.annotator is not None
            continue
        written = _written(judgement, losses)
        if written is None:
            continue
        if judgement.aspect == ERRORS:
            errors.append(written)
        else:
            missing.append(written)
    feedback = meta.pop(FEEDBACK, None)
    if feedback is not None or errors or missing or was_judged:
        row[FEEDBACK] = {ERRORS: errors, MISSING: missing, **(feedback or {})}
    row |= {key: value for key, value in meta.items() if key not in row}
    return row, +losses


def _written(judgement: Judgement, losses: Losses) -> dict[str, Any] | None:
    """The error or missing information of a judgement; None if the format has no place for it."""
    is_span = judgement.span is not None and judgement.side == "response"
    sentences = missing_places(judgement) if judgement.aspect == MISSING else None
    fits = (judgement.aspect == ERRORS and is_span) or sentences is not None
    if not fits or judgement.label is None:
        losses[f"judgements of the aspect {shorten(judgement.aspect, 40)}"] += 1
        return None
    for part in ("score", "annotator", "reason", "origin"):
        losses[part] += getattr(judgement, part) is not None
    if sentences is not None:
        losses["severity"] += judgement.severity is not None
        return {TYPE: judgement.label, **sentences}
    return error_json(judgement)


ROWS = FeedbackRows(parse, to_row, ERRORS, MISSING)
