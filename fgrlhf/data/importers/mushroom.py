"""Mu-SHROOM (SemEval-2025 task 3): hallucinated spans of answers in many languages."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fgrlhf.base.records import RowError, check_list, check_object, check_text
from fgrlhf.data.importers.files import (
    any_number,
    optional_text,
    read_objects,
    row_id,
    text_prompt,
    whole_number,
)
from fgrlhf.data.importers.hallucinations import HALLUCINATION
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import NO_ERROR, JudgedResponse, Judgement

SHARE = "share of annotators"  # the aspect of soft labels
MARKS = ("annotations", "hard_labels", "soft_labels")


def mushroom(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Mu-SHROOM, JSON lines: `{model_input, model_output_text, hard_labels, soft_labels, ...}`.

    Documented in github.com/Helsinki-NLP/mu-shroom; `lang` is the language. In files whose names
    end in `.extra`, `annotations` has the pairs [start, end] of each annotator, and [] where this
    one found nothing. The judgements are those of the annotators then, and the labels that were
    computed from them stay keys of the row. Other files have only these: `hard_labels`, what more
    than half of the annotators marked, become judgements, and `soft_labels`, the share of
    annotators who marked a span, become scores of the aspect `share of annotators`.

    Offsets are code points; a pair of two equal ones, from a click without a mark, is dropped.
    """
    return read_objects(path, _row, report)


def _row(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    response = check_text("model_output_text", row.get("model_output_text"), may_be_blank=True)
    if not report.has_response(number, "model_output_text", response):
        return None
    if all(row.get(key) is None for key in MARKS):
        raise RowError("hard_labels", f"missing: the row has none of {', '.join(MARKS)}")
    judgements: list[Judgement] = []
    used = ["id", "model_input", "model_output_text"]
    if row.get("annotations"):
        used.append("annotations")
        for name, marks in check_object("annotations", row["annotations"]).items():
            annotator = name if name.strip() else None
            judgements += _pairs(number, f"annotations.{name}", marks, annotator, response, report)
    else:
        used += MARKS
        if row.get("hard_labels") is not None:
            hard = row["hard_labels"]
            judgements += _pairs(number, "hard_labels", hard, None, response, report)
        judgements += _shares(number, row.get("soft_labels") or [], response, report)
    prompt_text = optional_text("model_input", row.get("model_input")) or ""
    meta = {key: value for key, value in row.items() if key not in used}
    prompt = text_prompt(row_id(row.get("id"), number), prompt_text, meta)
    return JudgedResponse(prompt, response, tuple(judgements))


def _pairs(
    number: int, key: str, value: Any, annotator: str | None, response: str, report: Report
) -> Iterator[Judgement]:
    """The judgements in a list of pairs [start, end]."""
    marks = check_list(key, value)
    if not marks:
        yield Judgement(HALLUCINATION, NO_ERROR, annotator=annotator)
    for i, mark in enumerate(marks):
        place = f"{key}[{i}]"
        pair = check_list(place, mark)
        if len(pair) != 2:
            raise RowError(place, "must be [start, end]")
        start, end = (whole_number(place, offset) for offset in pair)
        span = report.locate(number, place, response, None, start, end)
        if span is not None:
            yield Judgement(HALLUCINATION, HALLUCINATION, *span, annotator=annotator)


def _shares(number: int, value: Any, response: str, report: Report) -> Iterator[Judgement]:
    """The scores in a list of objects {start, end, prob}."""
    for i, item in enumerate(check_list("soft_labels", value)):
        key = f"soft_labels[{i}]"
        mark = check_object(key, item)
        start = whole_number(f"{key}.start", mark.get("start"))
        end = whole_number(f"{key}.end", mark.get("end"))
        share = any_number(f"{key}.prob", mark.get("prob"))
        span = report.locate(number, key, response, None, start, end)
        if span is not None:
            yield Judgement(SHARE, None, *span, score=share)
