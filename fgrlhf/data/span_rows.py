"""The default feedback rows of a task, as judgements and back.

interface_html/row_format.py describes the rows: those of the format `spans`, with more keys. All of
them are kept. A row without `spans` has other feedback only, so it has no judgements.
"""

from dataclasses import replace
from typing import Any

from fgrlhf.base.records import RowError, check_text
from fgrlhf.data.formats import SPANS
from fgrlhf.data.judgements import (
    MISSING_ASPECT,
    SPAN_ASPECT,
    SPAN_TEXTS,
    FeedbackRows,
    JudgedResponse,
    Losses,
    is_wrong_somewhere,
    span_row,
)
from fgrlhf.data.rows import Row

SPAN_KEYS = ("start", "end", "label", "side", *SPAN_TEXTS)


def parse(row: Row, number: int) -> JudgedResponse:
    """The judgements in a row. Raises `RowError` if it is malformed or has a key it would lose."""
    if row.has("spans"):
        judged = parse_spans(row, number)
        _check_span_keys(row.values["spans"])
        return judged
    judged = parse_spans(Row({**row.values, "spans": []}, {}), number)
    meta = dict(judged.prompt.meta)
    if row.has(MISSING_ASPECT):
        meta[MISSING_ASPECT] = row.get(MISSING_ASPECT)
    return replace(judged, prompt=replace(judged.prompt, meta=meta), judgements=())


def parse_spans(row: Row, number: int) -> JudgedResponse:
    """The spans of a row, whose keys may be renamed, for a row of judgements.

    Raises:
      RowError: the row is malformed, or has a key that means something else in rows of judgements.
    """
    judged = SPANS.parse(row, number)
    meta = judged.prompt.meta
    if "judgements" in meta:
        raise RowError("judgements", "is a key of rows of judgements: rename or remove it")
    for text in (meta.get("source"), judged.source):
        if text is not None:
            check_text("source", text)
    return judged


def _check_span_keys(spans: list[dict[str, Any]]) -> None:
    """Raise `RowError` for keys of a span that a judgement cannot hold."""
    for i, span in enumerate(spans):
        unknown = [key for key in span if key not in SPAN_KEYS]
        if unknown:
            raise RowError(f"spans[{i}].{unknown[0]}", "is not a key of a span")


def to_row(judged: JudgedResponse) -> tuple[dict[str, Any], Losses]:
    """The row, and what it cannot hold.

    Without any judgement, and if all errors are without a place, the row has no `spans`.
    """
    row, losses = span_row(judged)
    if not judged.judgements or is_wrong_somewhere(judged):
        del row["spans"]
    return row, losses


ROWS = FeedbackRows(parse, to_row, SPAN_ASPECT, MISSING_ASPECT)
