"""Writes judgements and comparisons in the formats of other tools.

What a format cannot hold is left out and counted. It is never put into a field that means something
else.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fgrlhf.data.comparison_rows import COMPARISONS, pair_row
from fgrlhf.data.comparisons import Comparison, as_pairs
from fgrlhf.data.format import Format
from fgrlhf.data.formats import JUDGEMENTS
from fgrlhf.data.importers.argilla import OF_SOURCE, SCORE, VERDICT
from fgrlhf.data.importers.doccano import COMMENTS
from fgrlhf.data.importers.files import COMMENT
from fgrlhf.data.importers.label_studio import PARTS, SUGGESTED
from fgrlhf.data.judgements import (
    NO_ERROR,
    SOURCE,
    JudgedResponse,
    Judgement,
    Losses,
    is_wrong_somewhere,
    only_steps,
    span_row,
)
from fgrlhf.data.label_studio_project import fitted, read_project
from fgrlhf.data.offsets import UTF16_UNIT, to_utf16
from fgrlhf.data.step_rows import TRL, step_rows
from fgrlhf.models.dialogs import messages_in
from fgrlhf.text_types import ASSISTANT, USER, Prompt

Rows = tuple[list[dict[str, Any]], Losses]  # the rows to write, and what they cannot hold

# ---- Label Studio --------------------------------------------------------------------------------


SCORE_CONTROL = "score"  # of a labelled judgement


def label_studio_rows(
    items: Iterable[JudgedResponse], names: bool = True, project: str | None = None
) -> Rows:
    """Tasks of Label Studio, with an annotation for each annotator.

    Judgements without an annotator but with an origin become predictions. `from_name` is the
    aspect, `to_name` the side. Score, severity, reason and evidence of a label are further results
    with the same `id`, of controls with these names. Labels of one annotator about the whole text
    are the choices of one result, and a comment is a text. The order of the judgements of different
    annotators is lost.

    Label Studio refuses a file with an annotator whom it does not know: a whole number is the
    number of a user there, and any other name is taken for the address of one. It takes imported
    annotations for the ground truth unless they say otherwise, so they do.

    Args:
      names: write who made each annotation.
      project: a file with the labelling configuration of the project. The tasks then have its keys,
        names and types, such as ratings; what it has no control for is lost.
    """
    losses = Losses()
    target = None if project is None else read_project(project)
    rows = [_label_studio_task(judged, losses, names) for judged in items]
    if target is not None:
        rows = [fitted(row, target, losses) for row in rows]
    return rows, +losses


def _label_studio_task(judged: JudgedResponse, losses: Losses, names: bool) -> dict[str, Any]:
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
            earlier = by_origin.setdefault(judgement.origin, [])
        else:
            earlier = by_annotator.setdefault(judgement.annotator, [])
        if not (earlier and len(results) == 1 and _added(earlier[-1], results[0])):
            earlier += results
    annotations = []
    for annotator, results in by_annotator.items():
        annotation: dict[str, Any] = {"result": results, "ground_truth": False}
        if annotator is not None and not names:
            losses["annotations with the name of an annotator"] += 1
        elif annotator is not None:
            is_number = (
                annotator.isascii() and annotator.isdecimal() and str(int(annotator)) == annotator
            )
            annotation["completed_by"] = int(annotator) if is_number else {"email": annotator}
        annotations.append(annotation)
    predictions = []
    for origin, results in by_origin.items():
        predictions.append({"model_version": origin, "result": results})
    return {"data": data, "annotations": annotations, "predictions": predictions}


def _added(earlier: dict[str, Any], result: dict[str, Any]) -> bool:
    """Add the choice of a whole text to an earlier result, if both answer the same control."""
    same = ("type", "from_name", "to_name", "origin")
    if result["type"] != "choices" or any(earlier.get(key) != result.get(key) for key in same):
        return False
    if result["from_name"] in PARTS or set(earlier["value"]) | set(result["value"]) != {"choices"}:
        return False
    (choice,) = result["value"]["choices"]
    if choice in earlier["value"]["choices"]:
        return False
    earlier["value"]["choices"].append(choice)
    return True


def _is_comment(judgement: Judgement) -> bool:
    """Whether a judgement is only a text about the whole response, such as a correction."""
    others = (judgement.severity, judgement.evidence, judgement.score, judgement.span)
    has_text = judgement.reason is not None and judgement.reason.strip()
    return judgement.label == COMMENT and bool(has_text) and others == (None,) * 4


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
        offsets = {"start": start, "end": end}
        quote = {"text": text[start:end]}
    shared = {"id": result_id, "from_name": judgement.aspect, "to_name": judgement.side}
    if judgement.annotator is not None and judgement.origin is not None:
        if judgement.origin in SUGGESTED:
            shared["origin"] = judgement.origin
        else:
            shared["origin"] = SUGGESTED[0]
            losses["names of origins"] += 1
    results = []
    if _is_comment(judgement):
        return [{**shared, "type": "textarea", "value": {"text": [judgement.reason]}}]
    if judgement.span is not None or judgement.label is not None:
        kind = "choices" if judgement.span is None else "labels"
        labels = [] if judgement.label is None else [judgement.label]
        value = {**offsets, **quote, kind: labels}
        results.append({**shared, "type": kind, "value": value})
    if judgement.score is not None:
        value = {**offsets, **quote, "number": judgement.score}
        control = SCORE_CONTROL if results else judgement.aspect
        results.append({**shared, "from_name": control, "type": "number", "value": value})
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

    The project needs a query for each aspect, with its name. If an aspect of the file has several
    kinds of judgements, those of labels of whole texts, scores and spans of the source have the
    name with ` (verdict)`, ` (score)` or ` (source)`. A query holds the suggestions of one agent
    and one score of each user. An annotator's `no error` of an aspect with spans is an empty list
    of spans. Severities, reasons and evidence are lost.

    Argilla's server takes only whole numbers as ratings, so a score such as 3.0 is written as 3.

    Offsets count UTF-16 code units, as the page of Argilla does. Its server compares them with the
    number of code points, so it refuses a span at the end of a text with an emoji.
    """
    losses = Losses()
    items = list(items)
    queries = _Queries.of(items)
    rows = [_argilla_record(judged, queries, losses) for judged in items]
    return rows, +losses


MARKS_KIND = ""  # the ends of the names of queries are the kinds of judgements: SCORE, VERDICT, ...


def _kind(judgement: Judgement) -> str:
    """The end of the name of a judgement's query, if its aspect has several kinds."""
    if judgement.label is None:
        return SCORE
    if judgement.span is None:
        return VERDICT
    return OF_SOURCE if judgement.side == SOURCE else MARKS_KIND


@dataclass(frozen=True)
class _Queries:
    """The queries of an Argilla project for the judgements of a file.

    Args:
      kinds: aspect -> the kinds of its judgements.
      several: the names of queries about whole texts that have several labels in one answer.
    """

    kinds: dict[str, set[str]]
    several: set[str]

    @classmethod
    def of(cls, items: Iterable[JudgedResponse]) -> "_Queries":
        kinds: dict[str, set[str]] = {}
        clean: set[str] = set()  # aspects with `no error`
        counts: dict[tuple[int, str, Any], int] = {}
        for number, judged in enumerate(items):
            for judgement in judged.judgements:
                if _kind(judgement) == VERDICT:
                    user = judgement.annotator
                    giver = (user, judgement.origin if user is None else None)
                    key = (number, judgement.aspect, giver)
                    counts[key] = counts.get(key, 0) + 1
                if judgement.label == NO_ERROR and judgement.span is None:
                    clean.add(judgement.aspect)
                else:
                    kinds.setdefault(judgement.aspect, set()).add(_kind(judgement))
        for aspect in clean:  # `no error` is a label, unless it can be a list without spans
            if MARKS_KIND not in kinds.setdefault(aspect, set()):
                kinds[aspect].add(VERDICT)
        several = {aspect for (_, aspect, _), count in counts.items() if count > 1}
        return cls(kinds, several)

    def is_empty_list(self, judgement: Judgement) -> bool:
        """Whether a judgement is an answer without spans."""
        is_clean = judgement.label == NO_ERROR and judgement.span is None
        return is_clean and MARKS_KIND in self.kinds[judgement.aspect]

    def name(self, judgement: Judgement) -> str:
        """The name of the query that a judgement answers."""
        kind = MARKS_KIND if self.is_empty_list(judgement) else _kind(judgement)
        kinds = self.kinds[judgement.aspect]
        is_needed = len(kinds) > 1 or kind == OF_SOURCE
        return judgement.aspect + kind if is_needed else judgement.aspect


def _argilla_record(judged: JudgedResponse, queries: _Queries, losses: Losses) -> dict[str, Any]:
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
        query = queries.name(judgement)
        answer = _argilla_answer(judged, judgement, queries, losses)
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
    judged: JudgedResponse, judgement: Judgement, queries: _Queries, losses: Losses
) -> Any:
    """The answer to a query: a list of spans or labels, a label, or a number."""
    if judgement.label is None:
        losses["spans of scores"] += judgement.span is not None
        losses["the side of scores"] += judgement.side == SOURCE
        score = judgement.score
        return int(score) if score is not None and score.is_integer() else score
    losses["scores of labelled judgements"] += judgement.score is not None
    if judgement.span is None:
        losses["the side of verdicts"] += judgement.side == SOURCE
        if queries.is_empty_list(judgement):
            return []
        is_list = judgement.aspect in queries.several
        return [judgement.label] if is_list else judgement.label
    text = judged.text(judgement.side)
    start, end = (to_utf16(text, place) for place in judgement.span)
    return [{"label": judgement.label, "start": start, "end": end}]


def _joined(earlier: Any, answer: Any, losses: Losses) -> Any:
    """Both answers of one user to a query; a second number is lost."""
    if earlier is None:
        return answer
    if isinstance(earlier, list):
        return [*earlier, *answer]
    losses["further scores of one user"] += 1
    return earlier


# ---- doccano, rows of this library, and TRL ------------------------------------------------------


DOCCANO_KEYS = (COMMENTS, "filename", "upload_name")  # that it replaces by its own


def doccano_rows(items: Iterable[JudgedResponse], offsets: str = UTF16_UNIT) -> Rows:
    """Doccano's JSON lines: `{id, text, label: [[start, end, label], ...], prompt?, source?}`.

    A file has the labels of one person or model, so those of all annotators and models are joined;
    the same mark is written once. Doccano refuses a file if one of its rows lacks a key that
    another has, or if a key of numbers is null in one, so all rows have all keys. It replaces some
    keys by its own; these are lost.

    Args:
      offsets: the unit in which the project counts: `utf16` or `code_points`.
    """
    losses = Losses()
    rows: list[dict[str, Any]] = []
    for judged in items:
        texts = {"prompt": judged.prompt.text or None, SOURCE: judged.source}
        row: dict[str, Any] = {"id": judged.prompt.id, "text": judged.response, "label": []}
        row |= {key: text for key, text in texts.items() if text is not None}
        for key, value in judged.prompt.meta.items():
            if key in DOCCANO_KEYS:
                losses[f"values of the key `{key}`, which doccano sets"] += bool(value)
            else:
                row.setdefault(key, value)
        losses["references"] += len(judged.prompt.references)
        losses["the roles of messages"] += _roles_lost(judged.prompt)
        for judgement in judged.judgements:
            mark = _doccano_mark(judged, judgement, offsets, losses)
            if mark is not None and mark not in row["label"]:
                row["label"].append(mark)
            elif mark is not None:
                losses["marks that another annotator or model made too"] += 1
        rows.append(row)
    _fill(rows)
    return rows, +losses


def _fill(rows: list[dict[str, Any]]) -> None:
    """Give all rows the same keys. A missing value is null, beside numbers a blank text."""
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row[key] for row in rows if row.get(key) is not None]
        if len(values) == len(rows):
            continue
        is_number = all(isinstance(value, int | float) for value in values)
        for row in rows:
            if row.get(key) is None:
                row[key] = "" if values and is_number else None


def _doccano_mark(
    judged: JudgedResponse, judgement: Judgement, offsets: str, losses: Losses
) -> list[Any] | None:
    """A mark as `[start, end, label]`; None if it is no span of the response."""
    if judgement.label is None or judgement.span is None or judgement.side == SOURCE:
        losses["judgements that are no labelled span of the response"] += 1
        return None
    for part in ("score", "severity", "annotator", "reason", "evidence", "origin"):
        losses[part] += getattr(judgement, part) is not None
    places = [*judgement.span]
    if offsets == UTF16_UNIT:
        places = [to_utf16(judged.response, place) for place in places]
    return [*places, judgement.label]


def span_rows(items: Iterable[JudgedResponse]) -> Rows:
    """Rows of the format `spans`.

    A response without a judgement has no row, since a row without spans has no error. Neither has
    one whose only errors have no place.
    """
    losses = Losses()
    rows = []
    for judged in items:
        if not judged.judgements:
            losses["responses without a judgement"] += 1
            continue
        if is_wrong_somewhere(judged):
            losses["responses whose only errors have no place"] += 1
            continue
        row, lost = span_row(judged)
        losses += lost
        rows.append(row)
    return rows, losses


def trl_stepwise_rows(items: Iterable[JudgedResponse]) -> Rows:
    """TRL's stepwise supervision: a step with a score above 0 is good.

    Raises:
      UserError: a step has no score.
    """
    losses = Losses()
    solutions = []
    for judged in items:
        solution, lost = only_steps(judged)
        losses += lost
        solutions.append(solution)
    rows, lost = step_rows(solutions, TRL)
    return rows, losses + lost


def trl_preference_rows(items: Sequence[Comparison], conversations: bool = False) -> Rows:
    """TRL's preference format: a row for every decided pair.

    Rows have texts. If the text of a prompt would lose its messages, all rows are conversations,
    since a data set of TRL has either texts or conversations.

    Args:
      conversations: write conversations in any case. TRL puts them into the model's chat template,
        but not texts.
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
    return texts_or_conversations(rows, pairs, conversations), +losses


def texts_or_conversations(
    rows: list[dict[str, Any]], items: Sequence[Comparison], conversations: bool = False
) -> list[dict[str, Any]]:
    """The rows of items, all of them as conversations if one is or if that is wanted."""
    if conversations or any(isinstance(row["prompt"], list) for row in rows):
        return [_as_conversation(row, item.prompt) for row, item in zip(rows, items, strict=True)]
    return rows


def _as_conversation(row: dict[str, Any], prompt: Prompt) -> dict[str, Any]:
    """The row of a pair or of one response with messages in place of its texts."""
    messages = prompt.messages or ((USER, prompt.text),)
    prompt_messages = [{"role": role, "content": text} for role, text in messages]
    answers = {}
    for key in ("chosen", "rejected", "completion"):
        if key in row:
            answers[key] = [{"role": ASSISTANT, "content": row[key]}]
    return row | {"prompt": prompt_messages} | answers


@dataclass(frozen=True)
class Exporter:
    """A format of another tool.

    Args:
      write: (items, keys) -> rows, and what they cannot hold.
      format: the row format of the items.
      keys: further arguments of `write`, which are keys of the command.
    """

    write: Callable[..., Rows]
    format: Format[Any] = JUDGEMENTS
    keys: tuple[str, ...] = ()


EXPORTERS: dict[str, Exporter] = {
    "label_studio": Exporter(label_studio_rows, keys=("names", "project")),
    "argilla": Exporter(argilla_rows),
    "doccano": Exporter(doccano_rows, keys=("offsets",)),
    "spans": Exporter(span_rows),
    "trl_stepwise": Exporter(trl_stepwise_rows),
    "trl_preference": Exporter(trl_preference_rows, COMPARISONS, ("conversations",)),
}
