"""The row format `judgements`: all judgements of a response, by any number of annotators.

    {prompt?, response, source?, judgements: [judgement, ...], references?}

    judgement: {aspect, label | score, start, end, severity?, side?, annotator?, reason?, evidence?,
                origin?, quote?}

`start` and `end` count the code points of the text on the judgement's side: the response, or the
source from which it was made. If both are null, the judgement is about the whole text. A `quote` is
verified: it must be the text from start to end.

Rows of spans and of steps (fgrlhf/data/formats.py) are read as the same responses and judgements.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fgrlhf.base.errors import shorten, suggestion
from fgrlhf.base.files import parse_json
from fgrlhf.base.records import Number, RowError, Text, check_list, check_object, read
from fgrlhf.data.format import (
    RESPONSE,
    SIDES,
    SOURCE,
    Format,
    SpanRow,
    counted_span,
    is_written_as_text,
    prompt_of,
    prompt_row,
    prompt_text,
    references_of,
    response_text,
)
from fgrlhf.data.rows import Row
from fgrlhf.data.shapes import PromptText
from fgrlhf.text_types import Prompt

NO_ERROR = "no error"  # the label of a whole text in which an annotator found nothing
SPAN_ASPECT, STEP_ASPECT = "span", "step"  # of judgements in rows of spans and of steps
LIKED_ASPECT = "liked"  # of spans that an annotator likes, so they are not errors
MISSING_ASPECT = "missing"  # of missing information; rows of spans have it under this key
JOINED = " + "  # between labels that one annotator gave the same place
SPAN_TEXTS = ("severity", "evidence", "reason")  # optional texts of a span in rows of spans
STEP_BREAK = "\n"  # between the steps of a response

# What a row cannot hold -> how often it was there. `+losses` leaves out counts of 0.
Losses = Counter[str]


@dataclass(frozen=True)
class Judgement:
    """One judgement of one annotator.

    Args:
      aspect: what is judged, such as `fluency`; the judgements of one aspect belong together.
      label: the kind of error, or the verdict. A judgement has a label, a score, or both.
      start, end: code points [start, end) of the text on its side; None: the whole text.
      score: a number, in the units of the data set.
      side: `response` or `source`. What a response omits can only be marked in the source.
      reason: why, in the annotator's words.
      evidence: what proves the judgement, such as a quotation.
      origin: who suggested the judgement, if the annotator did not make it alone.

    Raises:
      ValueError: the values do not form a judgement.
    """

    aspect: str
    label: str | None = None
    start: int | None = None
    end: int | None = None
    severity: str | None = None
    score: float | None = None
    side: str = RESPONSE
    annotator: str | None = None
    reason: str | None = None
    evidence: str | None = None
    origin: str | None = None

    def __post_init__(self):
        if self.side not in SIDES:
            raise ValueError(f"side is {self.side!r}, not one of {', '.join(SIDES)}")
        if self.label is None and self.score is None:
            raise ValueError("a judgement has a label or a score")
        if (self.start is None) != (self.end is None):
            raise ValueError("start and end are both numbers, or both None")
        if self.start is not None and self.end is not None and not 0 <= self.start < self.end:
            raise ValueError(f"not a span: [{self.start}, {self.end})")

    @property
    def span(self) -> tuple[int, int] | None:
        """[start, end); None for a judgement of the whole text."""
        if self.start is None or self.end is None:
            return None
        return self.start, self.end

    @property
    def place(self) -> tuple[int, int]:
        """[start, end). Raises `ValueError` for a judgement of the whole text."""
        if self.start is None or self.end is None:
            raise ValueError("a judgement of the whole text has no place")
        return self.start, self.end


@dataclass(frozen=True)
class JudgedResponse:
    """A response with its judgements, in the order of the file.

    Args:
      source: the text from which the response was made, if judgements refer to it.

    Raises:
      ValueError: a judgement is not in its text.
    """

    prompt: Prompt
    response: str
    judgements: tuple[Judgement, ...]
    source: str | None = None

    def __post_init__(self):
        for judgement in self.judgements:
            text = self.text(judgement.side)
            if judgement.end is not None and judgement.end > len(text):
                raise ValueError(
                    f"[{judgement.start}, {judgement.end}) is not in the {judgement.side}, which"
                    f" has {len(text)} characters"
                )

    @property
    def spans(self) -> tuple[Judgement, ...]:
        """The judgements with a place."""
        return tuple(judgement for judgement in self.judgements if judgement.span is not None)

    def marked(self, span: Judgement) -> str:
        """The text of a span; the whole text of its side if the judgement has no place."""
        return self.text(span.side)[slice(span.start, span.end)]

    def text(self, side: str) -> str:
        """The text of a side. Raises `ValueError` if there is no source."""
        if side == RESPONSE:
            return self.response
        if self.source is None:
            raise ValueError("a judgement is about the source, and there is no source")
        return self.source


# ---- rows ----------------------------------------------------------------------------------------

_PARTS = tuple(part.name for part in fields(Judgement))


class _JudgementRow(SpanRow):
    aspect: Text
    label: Text | None = None
    annotator: Text | None = None
    origin: Text | None = None
    score: Number | None = None


def _parse(row: Row, number: int) -> JudgedResponse:
    text = prompt_text(row, "prompt") if row.has("prompt") else PromptText("")
    response = response_text(row, "response", "completion")
    source = row.text("source") if row.has("source") else None
    key = row.key(row.first_of("judgements"))
    judgements = []
    for i, value in enumerate(check_list(key, row.get("judgements"))):
        name = f"{key}[{i}]"
        judgements.append(_judgement(row, name, check_object(name, value), response, source))
    prompt = prompt_of(row, number, text, references_of(row, "references"))
    return JudgedResponse(prompt, response, tuple(judgements), source)


def _judgement(
    row: Row, key: str, values: Mapping[str, Any], response: str, source: str | None
) -> Judgement:
    """A judgement of a row. Raises `RowError` if it is malformed."""
    for name in values:
        if name not in (*_PARTS, "quote"):
            raise RowError(
                f"{key}.{name}", f"is not a part of a judgement; {suggestion(name, _PARTS)}"
            )
    mark = read(_JudgementRow, values, key)
    if mark.label is None and mark.score is None:
        raise RowError(key, "must have a label or a score")
    if mark.side == SOURCE and source is None:
        raise RowError(f"{key}.side", "is `source`, and the row has no text under `source`")
    text = source if mark.side == SOURCE and source is not None else response
    start, end = _span(row, key, mark, text)
    return Judgement(start=start, end=end, **mark.model_dump(exclude={"start", "end", "quote"}))


def _span(
    row: Row, key: str, mark: _JudgementRow, text: str
) -> tuple[int, int] | tuple[None, None]:
    """The span of a judgement, whose quote is verified; (None, None) for the whole text."""
    start, end, side, quote = mark.start, mark.end, mark.side, mark.quote
    if (start is None) != (end is None):
        raise RowError(key, "start and end must both be numbers, or both null")
    marked = text
    span: tuple[int, int] | tuple[None, None] = (None, None)
    if start is not None:
        span = counted_span(row, key, start, end, text, side)
        marked = text[span[0] : span[1]]
    if quote is not None and quote != marked:
        raise RowError(
            f"{key}.quote",
            f"is {shorten(repr(quote), 60)}, but the {side} has {shorten(repr(marked), 60)} there",
        )
    return span


def _row(judged: JudgedResponse) -> dict[str, Any]:
    values: dict[str, Any] = {"response": judged.response}
    if judged.source is not None:
        values["source"] = judged.source
    values["judgements"] = [judgement_row(judgement) for judgement in judged.judgements]
    return _prompt_row(judged.prompt, values)


def _prompt_row(prompt: Prompt, values: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a response, which has no `prompt` if that is empty."""
    row = prompt_row(prompt, values)
    if not prompt.text:
        del row["prompt"]
    return row


def judgement_row(judgement: Judgement) -> dict[str, Any]:
    """A judgement as it is written in a row: start and end always, other parts if they are set."""
    values: dict[str, Any] = {}
    for name in _PARTS:
        value = getattr(judgement, name)
        if value is not None or name in ("start", "end"):
            values[name] = value
    return values


JUDGEMENTS = Format(
    "judgements",
    ("id", "prompt", "response", "completion", "source", "judgements", "references"),
    _parse,
    _row,
)


@dataclass(frozen=True)
class FeedbackRows:
    """A task's own feedback rows, as judgements and back.

    Args:
      parse: (row, its number) -> the judged response. Raises `RowError`.
      to_row: the inverse, and what a row cannot hold.
      marks, missing: the aspects of marked spans and of missing information.
    """

    parse: Callable[[Row, int], JudgedResponse]
    to_row: Callable[[JudgedResponse], tuple[dict[str, Any], Losses]]
    marks: str
    missing: str


# ---- missing information -------------------------------------------------------------------------


def missing_evidence(information: Mapping[str, Any], label_key: str) -> str:
    """Missing information without its label, as JSON: where it is stated."""
    places = {key: value for key, value in information.items() if key != label_key}
    return json.dumps(places, separators=(",", ":"))


def missing_places(judgement: Judgement) -> dict[str, Any] | None:
    """What `missing_evidence` wrote; None if the evidence is something else."""
    try:
        value = parse_json(judgement.evidence or "")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_missing_information(value: Any) -> bool:
    """Whether it is a list of one or more objects with a label."""
    if not isinstance(value, list) or not value:
        return False
    for information in value:
        if not isinstance(information, dict):
            return False
        label = information.get("label")
        if not isinstance(label, str) or not label.strip():
            return False
    return True


# ---- spans ---------------------------------------------------------------------------------------


def judged_spans(prompt: Prompt, response: str, spans: Sequence[Judgement]) -> JudgedResponse:
    """A response with its spans, then its missing information, as a row of spans has them.

    A response without spans was judged too: it has the judgement `no error`. Missing information
    (`missing` in the prompt's other keys, a list of objects with a label) is about the whole
    response, and its other keys are the evidence. A text `source` there is the source; without one,
    spans on that side are of the prompt.
    """
    judgements = list(spans) or [Judgement(SPAN_ASPECT, NO_ERROR)]
    meta = dict(prompt.meta)
    if _is_missing_information(meta.get(MISSING_ASPECT)):
        for information in meta.pop(MISSING_ASPECT):
            evidence = missing_evidence(information, "label")
            judgements.append(Judgement(MISSING_ASPECT, information["label"], evidence=evidence))
    source = None
    if isinstance(meta.get(SOURCE), str):
        source = meta.pop(SOURCE)
    elif any(span.side == SOURCE for span in spans):
        source = prompt.text
    return JudgedResponse(replace(prompt, meta=meta), response, tuple(judgements), source)


def span_row(judged: JudgedResponse) -> tuple[dict[str, Any], Losses]:
    """The row of the labelled spans and missing information, and what it cannot hold.

    If annotators judged the response, what a model suggested is left out: the annotators removed
    it, or it is there a second time as theirs.
    """
    judged, losses = without_suggestions(judged)
    spans = []
    missing = []
    for judgement in judged.judgements:
        if judgement.label is None:
            losses["judgements without a label"] += 1
            continue
        places = None  # of missing information
        if judgement.aspect == MISSING_ASPECT:
            places = missing_places(judgement)
        if judgement.span is not None:
            spans.append(_span_values(judgement))
        elif places is not None:
            missing.append({"label": judgement.label, **places})
            losses["severity"] += judgement.severity is not None
            losses["reason"] += judgement.reason is not None
        elif (judgement.aspect, judgement.label) != (SPAN_ASPECT, NO_ERROR):
            losses["judgements of the whole response"] += 1
            continue
        for part in ("score", "annotator", "origin"):
            losses[part] += getattr(judgement, part) is not None
    has_no_error = any(judgement.label == NO_ERROR for judgement in judged.judgements)
    if judged.judgements and not spans and not has_no_error:
        losses["responses left without a span, though not judged `no error`"] += 1
    aspects = {judgement.aspect for judgement in judged.judgements}
    losses["aspects"] += len(aspects - {SPAN_ASPECT, MISSING_ASPECT})
    values: dict[str, Any] = {"response": judged.response, "spans": spans}
    if missing:
        losses["other values of `missing`"] += bool(judged.prompt.meta.get(MISSING_ASPECT))
        values[MISSING_ASPECT] = missing
    if judged.source is not None and not _prompt_is_source(judged):
        values[SOURCE] = judged.source
    return _prompt_row(judged.prompt, values), +losses


def _span_values(span: Judgement) -> dict[str, Any]:
    """A span as it is in a row."""
    values: dict[str, Any] = {"start": span.start, "end": span.end, "label": span.label}
    if span.side != RESPONSE:
        values["side"] = span.side
    for part in SPAN_TEXTS:
        if getattr(span, part) is not None:
            values[part] = getattr(span, part)
    return values


def _prompt_is_source(judged: JudgedResponse) -> bool:
    """Whether rows of spans need no `source`: spans of the source refer to an equal prompt."""
    marks_source = any(judgement.side == SOURCE for judgement in judged.judgements)
    is_text = is_written_as_text(judged.prompt)
    return marks_source and is_text and judged.source == judged.prompt.text


# ---- suggestions, and errors without a place -----------------------------------------------------


def without_suggestions(judged: JudgedResponse) -> tuple[JudgedResponse, Losses]:
    """The response without what only a model suggested, if an annotator judged it too."""
    losses = Losses()
    made = []
    for judgement in judged.judgements:
        if judgement.annotator is None and judgement.origin is not None:
            name = shorten(judgement.origin, 40)
            losses[f"judgements that {name} suggested and no annotator made"] += 1
        else:
            made.append(judgement)
    if not made or not losses:
        return judged, Losses()
    return replace(judged, judgements=tuple(made)), losses


def is_wrong_somewhere(judged: JudgedResponse) -> bool:
    """Whether a response has an error without a place, and none with one.

    An error is a label with a severity. Spans cannot tell such a response from one that is
    right. If another annotator found no error (`no error`), it counts as right.
    """
    has_error = False
    for judgement in judged.judgements:
        if judgement.span is not None or judgement.label == NO_ERROR:
            return False
        is_error = None not in (judgement.label, judgement.severity)
        has_error = has_error or (is_error and judgement.aspect != MISSING_ASPECT)
    return has_error


# ---- steps ---------------------------------------------------------------------------------------


def judged_steps(prompt: Prompt, steps: Sequence[tuple[str, Judgement]]) -> JudgedResponse:
    """A solution as a response, one step per line.

    Args:
      steps: the text of each, and its judgement, without a place.
    """
    judgements = []
    start = 0
    for text, judgement in steps:
        end = start + len(text)
        judgements.append(replace(judgement, start=start, end=end))
        start = end + len(STEP_BREAK)
    response = STEP_BREAK.join(text for text, _ in steps)
    return JudgedResponse(prompt, response, tuple(judgements))


def only_steps(judged: JudgedResponse) -> tuple[JudgedResponse, Losses]:
    """A solution with a judgement for each step in the order of the text, and what is left out.

    A step keeps one judgement: that of the annotator who occurs first in the list. Of two steps
    that overlap, the later one is left out.
    """
    losses = Losses()
    found: list[tuple[int, int, int, Judgement]] = []  # start, end, number of the annotator
    annotators: list[str | None] = []
    for judgement in judged.judgements:
        span = judgement.span
        if judgement.aspect != STEP_ASPECT or judgement.side != RESPONSE or span is None:
            losses["judgements that are not of a step"] += 1
            continue
        if judgement.annotator not in annotators:
            annotators.append(judgement.annotator)
        found.append((*span, annotators.index(judgement.annotator), judgement))
    steps = []
    last: tuple[int, int] = (0, 0)  # the span of the last step
    between: list[str] = []  # the texts before, between and after the steps
    for start, end, _, judgement in sorted(found, key=lambda item: item[:3]):
        if (start, end) == last:
            losses["further judgements of a step"] += 1
            continue
        if start < last[1]:
            losses["steps that overlap an earlier one"] += 1
            continue
        between.append(judged.response[last[1] : start])
        last = start, end
        steps.append(judgement)
        for part in ("severity", "annotator", "reason", "evidence", "origin"):
            losses[part] += getattr(judgement, part) is not None
    between.append(judged.response[last[1] :])
    if steps:  # else the whole solution is left out, and counted as that
        losses["texts that are not in a step"] += sum(bool(text.strip()) for text in between)
    if judged.source is not None:
        losses["source texts"] += 1
    return replace(judged, judgements=tuple(steps)), +losses
