"""Writes judgements and comparisons in the formats of other tools.

What a format cannot hold is left out and counted, never squeezed into another field.
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
from fgrlhf.data.locate import to_utf16
from fgrlhf.data.step_rows import TRL, step_rows
from fgrlhf.models.dialogs import messages_in
from fgrlhf.text_types import ASSISTANT, USER, Prompt

Rows = tuple[list[dict[str, Any]], Losses]

# ---- Label Studio --------------------------------------------------------------------------------


def label_studio_rows(items: Iterable[JudgedResponse]) -> Rows:
    """Tasks with annotations; judgements without an annotator but with an origin are predictions.

    `from_name` is the aspect, `to_name` the side. Severity, reason and evidence are further
    results with the same `id`. The order of the judgements of different annotators is lost.
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
    data |= {key: value for key, value in judged.prompt.meta.items() if key not in data}
    losses["references"] += len(judged.prompt.references)
    losses["the roles of messages"] += _roles_lost(judged.prompt)
    annotations: dict[str | None, list[dict[str, Any]]] = {}
    predictions: dict[str, list[dict[str, Any]]] = {}
    for number, judgement in enumerate(judged.judgements):
        results = _results(judged, judgement, f"r{number}", losses)
        if judgement.annotator is None and judgement.origin is not None:
            predictions.setdefault(judgement.origin, []).extend(results)
        else:
            annotations.setdefault(judgement.annotator, []).extend(results)
    written = []
    for annotator, results in annotations.items():
        annotation: dict[str, Any] = {"result": results}
        if annotator is not None:
            annotation["completed_by"] = {"email": annotator}
        written.append(annotation)
    suggested = [{"model_version": m, "result": results} for m, results in predictions.items()]
    return {"data": data, "annotations": written, "predictions": suggested}


def _roles_lost(prompt: Prompt) -> int:
    """The number of messages that cannot be read again from the prompt's text."""
    return 0 if prompt.messages == messages_in(prompt.text) else len(prompt.messages)


def _results(
    judged: JudgedResponse, judgement: Judgement, name: str, losses: Losses
) -> list[dict[str, Any]]:
    """The results of one judgement, which share their id."""
    value: dict[str, Any] = {}
    if judgement.span is not None:
        text = judged.text(judgement.side)
        start, end = judgement.span
        value = {
            "start": to_utf16(text, start),
            "end": to_utf16(text, end),
            "text": text[start:end],
        }
    shared = {"id": name, "from_name": judgement.aspect, "to_name": judgement.side}
    if judgement.annotator is not None and judgement.origin is not None:
        if judgement.origin not in SUGGESTED:
            losses["names of origins"] += 1
        shared["origin"] = judgement.origin if judgement.origin in SUGGESTED else SUGGESTED[0]
    results = []
    if judgement.span is not None or judgement.label is not None:
        kind = "choices" if judgement.span is None else "labels"
        labels = [] if judgement.label is None else [judgement.label]
        results.append({**shared, "type": kind, "value": {**value, kind: labels}})
    if judgement.score is not None:
        score = {**value, "number": judgement.score}
        results.append({**shared, "type": "number", "value": score})
    for part in PARTS:
        content = getattr(judgement, part)
        if content is not None:
            kind, key = ("choices", "choices") if part == "severity" else ("textarea", "text")
            part_value = {**{k: v for k, v in value.items() if k != "text"}, key: [content]}
            results.append({**shared, "from_name": part, "type": kind, "value": part_value})
    return results


# ---- Argilla -------------------------------------------------------------------------------------


def argilla_rows(items: Iterable[JudgedResponse]) -> Rows:
    """Records with fields, responses and suggestions.

    A project needs, for each aspect, a query of spans, and one for labels, scores and spans of the
    source if there are any; they have the name of the aspect with ` (verdict)`, ` (score)` and
    ` (source)`. A query holds one agent's suggestions and one score of each user. Severities,
    reasons and evidence are lost.
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
    responses: dict[str, dict[str | None, Any]] = {}
    suggestions: dict[str, dict[str, Any]] = {}
    for judgement in judged.judgements:
        for part in ("severity", "reason", "evidence"):
            losses[part] += getattr(judgement, part) is not None
        name, answer = _argilla_answer(judgement, losses)
        if judgement.annotator is None and judgement.origin is not None:
            given = suggestions.setdefault(name, {"value": None, "agent": judgement.origin})
            if given["agent"] != judgement.origin:
                losses["suggestions of further agents"] += 1
                continue
            given["value"] = _joined(given["value"], answer, losses)
            continue
        losses["origin"] += judgement.origin is not None
        users = responses.setdefault(name, {})
        users[judgement.annotator] = _joined(users.get(judgement.annotator), answer, losses)
    written = {}
    for name, users in responses.items():
        written[name] = [{"value": value, "user_id": user} for user, value in users.items()]
    return {
        "id": judged.prompt.id,
        "fields": fields,
        "metadata": dict(judged.prompt.meta),
        "responses": written,
        "suggestions": suggestions,
    }


def _argilla_answer(judgement: Judgement, losses: Losses) -> tuple[str, Any]:
    """The name of a query, and the answer to it: a list, or a number."""
    end = OF_SOURCE if judgement.side == SOURCE else ""
    if judgement.label is None:
        losses["spans of scores"] += judgement.span is not None
        losses["the side of scores"] += judgement.side == SOURCE
        return judgement.aspect + SCORE, judgement.score
    losses["scores of labelled judgements"] += judgement.score is not None
    if judgement.span is None:
        losses["the side of verdicts"] += judgement.side == SOURCE
        return judgement.aspect + VERDICT, [judgement.label]
    start, end_of_span = judgement.span
    mark = {"label": judgement.label, "start": start, "end": end_of_span}
    return judgement.aspect + end, [mark]


def _joined(given: Any, answer: Any, losses: Losses) -> Any:
    """Both answers of one user; a second number is lost."""
    if given is None:
        return answer
    if isinstance(given, list):
        return [*given, *answer]
    losses["further scores of one user"] += 1
    return given


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
    since a data set of TRL is one or the other.
    """
    losses = Losses()
    losses["comparisons without a decided pair"] += sum(not item.pairs for item in items)
    losses["marks"] += sum(any(a.marked for a in item.answers) for item in items)
    for item in items:
        if item.pairs:
            losses["responses in no decided pair"] += len(item.answers) - len(
                {place for pair in item.pairs for place in pair}
            )
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
