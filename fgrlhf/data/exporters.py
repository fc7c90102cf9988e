"""Writes judgements and comparisons in the formats of other tools.

What a format cannot hold is left out and counted. It is never put into a field that means something
else.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fgrlhf.data.comparisons import Comparison, as_pairs
from fgrlhf.data.format import Format
from fgrlhf.data.formats import COMPARISONS, JUDGEMENTS, SPANS, pair_row
from fgrlhf.data.importers.tools import OF_SOURCE, PARTS, SCORE, SUGGESTED, VERDICT
from fgrlhf.data.judgements import (
    SOURCE,
    JudgedResponse,
    Judgement,
    Losses,
    to_spans,
    to_steps,
)
from fgrlhf.data.offsets import to_utf16
from fgrlhf.data.step_rows import TRL, step_rows
from fgrlhf.models.dialogs import messages_in
from fgrlhf.text_types import ASSISTANT, USER, Prompt

Rows = tuple[list[dict[str, Any]], Losses]  # the rows to write, and what they cannot hold

# ---- Label Studio --------------------------------------------------------------------------------


def label_studio_rows(items: Iterable[JudgedResponse]) -> Rows:
    """Tasks of Label Studio, with an annotation for each annotator.

    Judgements without an annotator but with an origin become predictions. `from_name` is the
    aspect, `to_name` the side. Severity, reason and evidence are further results with the same
    `id`. The order of the judgements of different annotators is lost.
    """
    losses = Losses()
    rows = [_label_studio_task(judged, losses) for judged in items]
    return rows, +losses


def _label_studio_task(judged: JudgedResponse, losses: Losses) -> dict[str, Any]:
    data: dict[str, Any] = {"id": judged.prompt.id, "response": judged.response}
    if judged.prompt.text:
        data["prompt"] = judged.prompt.text
    if judged.source is not None:
        data[SOURCE] = judged.source
    for key, value in judged.prompt.meta.items():
        data.setdefault(key, value)
    losses["references"] += len(judged.prompt.references)
    losses["the roles of messages"] += _roles_lost(judged.prompt)
    by_annotator: dict[str | None, list[dict[str, Any]]] = {}
    by_origin: dict[str, list[dict[str, Any]]] = {}
    for number, judgement in enumerate(judged.judgements):
        results = _results(judged, judgement, f"r{number}", losses)
        if judgement.annotator is None and judgement.origin is not None:
            by_origin.setdefault(judgement.origin, []).extend(results)
        else:
            by_annotator.setdefault(judgement.annotator, []).extend(results)
    annotations = []
    for annotator, results in by_annotator.items():
        annotation: dict[str, Any] = {"result": results}
        if annotator is not None:
            annotation["completed_by"] = {"email": annotator}
        annotations.append(annotation)
    predictions = []
    for origin, results in by_origin.items():
        predictions.append({"model_version": origin, "result": results})
    return {"data": data, "annotations": annotations, "predictions": predictions}


def _roles_lost(prompt: Prompt) -> int:
    """The number of messages that cannot be read again from the prompt's text: all, or none."""
    if prompt.messages == messages_in(prompt.text):
        return 0
    return len(prompt.messages)


def _results(
    judged: JudgedResponse, judgement: Judgement, result_id: str, losses: Losses
) -> list[dict[str, Any]]:
    """The results of one judgement, which share their id."""
    offsets: dict[str, Any] = {}
    quote: dict[str, Any] = {}
    if judgement.span is not None:
        text = judged.text(judgement.side)
        start, end = judgement.span
        offsets = {"start": to_utf16(text, start), "end": to_utf16(text, end)}
        quote = {"text": text[start:end]}
    shared = {"id": result_id, "from_name": judgement.aspect, "to_name": judgement.side}
    if judgement.annotator is not None and judgement.origin is not None:
        if judgement.origin in SUGGESTED:
            shared["origin"] = judgement.origin
        else:
            shared["origin"] = SUGGESTED[0]
            losses["names of origins"] += 1
    results = []
    if judgement.span is not None or judgement.label is not None:
        kind = "choices" if judgement.span is None else "labels"
        labels = [] if judgement.label is None else [judgement.label]
        value = {**offsets, **quote, kind: labels}
        results.append({**shared, "type": kind, "value": value})
    if judgement.score is not None:
        value = {**offsets, **quote, "number": judgement.score}
        results.append({**shared, "type": "number", "value": value})
    for part in PARTS:
        content = getattr(judgement, part)
        if content is None:
            continue
        if part == "severity":
            kind = "choices"
            value = {**offsets, "choices": [content]}
        else:  # its `text` is what the annotator wrote, not the marked characters
            kind = "textarea"
            value = {**offsets, "text": [content]}
        results.append({**shared, "from_name": part, "type": kind, "value": value})
    return results


# ---- Argilla -------------------------------------------------------------------------------------


def argilla_rows(items: Iterable[JudgedResponse]) -> Rows:
    """Records of Argilla 2, with fields, responses and suggestions.

    The project needs up to four queries for each aspect. The query of its spans has the name of the
    aspect. Those of labels of whole texts, scores and spans of the source have that name with
    ` (verdict)`, ` (score)` or ` (source)`. A query holds the suggestions of one agent and one
    score of each user. Severities, reasons and evidence are lost.

    Offsets count UTF-16 code units, as the page of Argilla does. Its server compares them with the
    number of code points, so it refuses a span at the end of a text with an emoji.
    """
    losses = Losses()
    rows = [_argilla_record(judged, losses) for judged in items]
    return rows, +losses


def _argilla_record(judged: JudgedResponse, losses: Losses) -> dict[str, Any]:
    fields = {"prompt": judged.prompt.text, "response": judged.response}
    if judged.source is not None:
        fields[SOURCE] = judged.source
    losses["references"] += len(judged.prompt.references)
    losses["the roles of messages"] += _roles_lost(judged.prompt)
    responses: dict[str, dict[str | None, Any]] = {}  # query -> annotator -> answer
    suggestions: dict[str, dict[str, Any]] = {}  # query -> answer and agent
    for judgement in judged.judgements:
        for part in ("severity", "reason", "evidence"):
            losses[part] += getattr(judgement, part) is not None
        query, answer = _argilla_answer(judged, judgement, losses)
        if judgement.annotator is None and judgement.origin is not None:
            suggestion = suggestions.setdefault(query, {"value": None, "agent": judgement.origin})
            if suggestion["agent"] == judgement.origin:
                suggestion["value"] = _joined(suggestion["value"], answer, losses)
            else:
                losses["suggestions of further agents"] += 1
        else:
            losses["origin"] += judgement.origin is not None
            answers = responses.setdefault(query, {})
            earlier = answers.get(judgement.annotator)
            answers[judgement.annotator] = _joined(earlier, answer, losses)
    response_lists = {}
    for query, answers in responses.items():
        response_lists[query] = [
            {"value": value, "user_id": user} for user, value in answers.items()
        ]
    return {
        "id": judged.prompt.id,
        "fields": fields,
        "metadata": dict(judged.prompt.meta),
        "responses": response_lists,
        "suggestions": suggestions,
    }


def _argilla_answer(
    judged: JudgedResponse, judgement: Judgement, losses: Losses
) -> tuple[str, Any]:
    """The name of a query, and the answer to it: a list of spans or labels, or a number."""
    if judgement.label is None:
        losses["spans of scores"] += judgement.span is not None
        losses["the side of scores"] += judgement.side == SOURCE
        return judgement.aspect + SCORE, judgement.score
    losses["scores of labelled judgements"] += judgement.score is not None
    if judgement.span is None:
        losses["the side of verdicts"] += judgement.side == SOURCE
        return judgement.aspect + VERDICT, [judgement.label]
    query = judgement.aspect
    if judgement.side == SOURCE:
        query += OF_SOURCE
    text = judged.text(judgement.side)
    start, end = (to_utf16(text, place) for place in judgement.span)
    return query, [{"label": judgement.label, "start": start, "end": end}]


def _joined(earlier: Any, answer: Any, losses: Losses) -> Any:
    """Both answers of one user to a query; a second number is lost."""
    if earlier is None:
        return answer
    if isinstance(earlier, list):
        return [*earlier, *answer]
    losses["further scores of one user"] += 1
    return earlier


# ---- rows of this library, and TRL ---------------------------------------------------------------


def span_rows(items: Iterable[JudgedResponse]) -> Rows:
    """Rows of the format `spans`.

    A response without a judgement has no row, since a row without spans has no error.
    """
    losses = Losses()
    rows = []
    for judged in items:
        if not judged.judgements:
            losses["responses without a judgement"] += 1
            continue
        feedback, lost = to_spans(judged)
        losses += lost
        rows.append(SPANS.to_row(feedback))
    return rows, losses


def trl_stepwise_rows(items: Iterable[JudgedResponse]) -> Rows:
    """TRL's stepwise supervision: a step with a score above 0 is good.

    Raises:
      UserError: a step has no score.
    """
    losses = Losses()
    solutions = []
    for judged in items:
        feedback, lost = to_steps(judged)
        losses += lost
        solutions.append(feedback)
    rows, lost = step_rows(solutions, TRL)
    return rows, losses + lost


def trl_preference_rows(items: Sequence[Comparison]) -> Rows:
    """TRL's preference format: a row for every decided pair.

    Rows have texts. If the text of a prompt would lose its messages, all rows are conversations,
    since a data set of TRL has either texts or conversations.
    """
    undecided = [item for item in items if not item.pairs]
    marked = [item for item in items if any(answer.marked for answer in item.answers)]
    losses = Losses()
    losses["comparisons without a decided pair"] += len(undecided)
    losses["marks"] += len(marked)
    for item in items:
        if item.pairs:
            in_pairs = {place for pair in item.pairs for place in pair}
            losses["responses in no decided pair"] += len(item.answers) - len(in_pairs)
    pairs = as_pairs(items)
    rows = [pair_row(pair) for pair in pairs]
    if any(isinstance(row["prompt"], list) for row in rows):
        rows = [_as_conversation(row, pair.prompt) for row, pair in zip(rows, pairs, strict=True)]
    return rows, +losses


def _as_conversation(row: dict[str, Any], prompt: Prompt) -> dict[str, Any]:
    """The row of a pair with messages in place of its texts."""
    messages = prompt.messages or ((USER, prompt.text),)
    prompt_messages = [{"role": role, "content": text} for role, text in messages]
    answers = {}
    for key in ("chosen", "rejected"):
        answers[key] = [{"role": ASSISTANT, "content": row[key]}]
    return row | {"prompt": prompt_messages} | answers


@dataclass(frozen=True)
class Exporter:
    """A format of another tool.

    Args:
      write: items -> rows, and what they cannot hold.
      format: the row format of the items.
    """

    write: Callable[[Any], Rows]
    format: Format[Any] = JUDGEMENTS


EXPORTERS: dict[str, Exporter] = {
    "label_studio": Exporter(label_studio_rows),
    "argilla": Exporter(argilla_rows),
    "spans": Exporter(span_rows),
    "trl_stepwise": Exporter(trl_stepwise_rows),
    "trl_preference": Exporter(trl_preference_rows, COMPARISONS),
}
