"""Exports of the annotation tool doccano."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fgrlhf.base.records import RowError, check_list, check_text
from fgrlhf.data.importers.files import (
    optional_text,
    prompt_key,
    read_objects,
    row_id,
    text_prompt,
    whole_number,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import NO_ERROR, SOURCE, JudgedResponse, Judgement
from fgrlhf.data.locate import READING_OF
from fgrlhf.data.offsets import UTF16_UNIT

CORRECTION = "correction"  # the key of a row for a better version of its text
MARK_KEYS = ("label", "labels", "entities")  # keys of marks, which are also the aspect
COMMENTS = "Comments"  # in every row of an export
LABEL_KEYS = (*MARK_KEYS, "cats")


def doccano(
    path: str | Path,
    report: Report,
    offsets: str = UTF16_UNIT,
    confirmed: bool = False,
    annotator: str | None = None,
    corrections: bool = False,
) -> list[JudgedResponse]:
    """Doccano's JSON lines: `{text, label: [[start, end, label], ...]}` or with `entities`.

    Documented in doccano.github.io/doccano (JSONL and JSONL with relations). A label that is a text
    is about the whole text; projects of intents have such labels under `cats`, beside `entities`.
    An entity is `{start_offset, end_offset, label}`. Relations are lost.

    The page counts UTF-16 code units, or grapheme clusters in a project with that option, and the
    file does not say which (seen in doccano 1.8.4). Spans have no text, so they cannot be verified.
    The report counts the spans that depend on the unit on their own.

    A row without a label can be one that nobody has opened, unless only confirmed rows were
    exported.

    Args:
      offsets: the unit: `utf16`, `graphemes` or `code_points`.
      confirmed: the file has only confirmed rows, so one without a label is judged `no error`.
      annotator: who made the labels. Doccano writes a file for each member, named after the member.
      corrections: the project is of the type Seq2seq, so labels that are texts are better versions
        of the text. The first one is kept as the row's `correction`. The file does not tell them
        from labels of the whole text.
    """
    read = partial(
        _row, offsets=offsets, confirmed=confirmed, annotator=annotator, corrections=corrections
    )
    return read_objects(path, read, report)


def _row(
    number: int,
    row: Mapping[str, Any],
    report: Report,
    offsets: str,
    confirmed: bool,
    annotator: str | None,
    corrections: bool,
) -> JudgedResponse | None:
    response = check_text("text", row.get("text", row.get("data")), may_be_blank=True)
    keys = [name for name in LABEL_KEYS if row.get(name) is not None]
    if not keys:
        raise RowError("label", f"missing; labels are in one of {', '.join(LABEL_KEYS)}")
    if not report.has_response(number, "text", response):
        return None
    judgements = []
    written: dict[str, str] = {}  # the correction under its key
    count = 0  # of labels in the row
    for key in keys:
        for i, value in enumerate(check_list(key, row[key])):
            place = f"{key}[{i}]"
            if isinstance(value, str) and not value.strip():
                report.losses["blank labels"] += 1
                continue
            count += 1
            if isinstance(value, str) and corrections:
                if written.setdefault(CORRECTION, value) is not value:
                    report.losses["further corrections of a text"] += 1
                continue
            if isinstance(value, str):
                judgements.append(Judgement(key, check_text(place, value), annotator=annotator))
                continue
            start, end, label = _mark(place, value)
            reading = READING_OF[offsets]
            span = report.locate_by_unit(number, place, response, start, end, reading)
            if span is not None:
                judgements.append(Judgement(key, label, *span, annotator=annotator))
    if not count and confirmed:
        aspect = next((key for key in keys if key in MARK_KEYS), keys[0])
        judgements.append(Judgement(aspect, NO_ERROR, annotator=annotator))
    elif not count:
        report.notes["rows without a label, not read as `no error` (see confirmed=true)"] += 1
    relations = check_list("relations", row.get("relations") or [])
    if relations:
        report.losses["relations"] += len(relations)
    texts = {}  # under other keys that judgements have too; a number there means something else
    name_of_prompt = prompt_key("", row, "text" if "text" in row else "data")
    for name in ("prompt", name_of_prompt, SOURCE):
        if isinstance(row.get(name), str):
            texts[name] = optional_text(name, row[name])
    prompt_text, source = texts.get(name_of_prompt) or "", texts.get(SOURCE)
    used = ("text", "data", "id", "relations", *LABEL_KEYS, *texts)
    meta = {name: value for name, value in row.items() if name not in used}
    if meta.get(COMMENTS) == []:
        del meta[COMMENTS]
    meta |= written
    prompt = text_prompt(row_id(row.get("id"), number), prompt_text, meta)
    return JudgedResponse(prompt, response, tuple(judgements), source)


def _mark(key: str, value: Any) -> tuple[int, int, str]:
    """Start, end and label of a mark, which is a list or an object."""
    if isinstance(value, Mapping):
        start = value.get("start_offset")
        end = value.get("end_offset")
        label = value.get("label")
    else:
        parts = check_list(key, value)
        if len(parts) != 3:
            raise RowError(key, "must be [start, end, label]")
        start, end, label = parts
    return whole_number(key, start), whole_number(key, end), check_text(key, label)
