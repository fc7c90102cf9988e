"""Exports of annotation tools: Label Studio, Argilla and doccano."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fgrlhf.data.importers.files import (
    optional_text,
    read_objects,
    row_id,
    text_prompt,
    whole_number,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import RESPONSE, SOURCE, JudgedResponse, Judgement
from fgrlhf.data.locate import CODE_POINTS, UTF16, Reading
from fgrlhf.data.offsets import UTF16_UNIT, counts_alike
from fgrlhf.data.rows import (
    RowError,
    check_list,
    check_number,
    check_object,
    check_text,
    check_texts,
)
from fgrlhf.text_types import Prompt

COMMENT = "comment"  # the label of a free text about a whole response

# ---- Label Studio --------------------------------------------------------------------------------

READABLE = ("labels", "choices", "number", "rating", "textarea")  # types of results
PARTS = ("severity", "reason", "evidence")  # names of controls that give a part of a judgement
SUGGESTED = ("prediction", "prediction-changed")  # `origin` of a result that a model suggested
TEXT_KEYS = (RESPONSE, "text")  # keys of the text in which people mark, in `data` or `fields`

NamedResult = tuple[str, Mapping[str, Any]]  # a result, with its key in the task for messages


def label_studio(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Label Studio's JSON export: tasks with `data`, `annotations` and `predictions`.

    Documented in labelstud.io/guide/task_format and labelstud.io/guide/export. Results of the types
    labels, choices, number, rating and textarea are read.

    The results with the same `id` are a region. One of them, its main result, has the aspect
    (`from_name`), the span and the labels: each label becomes a judgement. The region's other
    results add a score, and what the controls named `severity`, `reason` and `evidence` hold.
    Choices of any other control are lost, and so are second values of these parts. A note of a
    region (`meta.text`) is the reason if no control gives one.

    The editor counts UTF-16 code units; where a region has its `text`, code points are recognised
    too. Predictions become judgements whose origin is the `model_version`. Some exports have only
    the numbers of the predictions, which are lost.

    A judgement has no place for a model's confidence, so scores of predictions are lost. So are
    `meta` of a task and `ground_truth` of an annotation. All of these are counted.
    """
    return read_objects(path, _label_studio_task, report)


def _label_studio_task(
    number: int, row: Mapping[str, Any], report: Report
) -> JudgedResponse | None:
    data = check_object("data", row.get("data"))
    key = next((name for name in TEXT_KEYS if name in data), None)
    if key is None:
        raise RowError("data", f"has no text under {' or '.join(TEXT_KEYS)}")
    response = check_text(f"data.{key}", data[key], may_be_blank=True)
    if not report.has_response(number, f"data.{key}", response):
        return None
    source = optional_text("data.source", data.get(SOURCE))
    others = {name: text for name, text in data.items() if isinstance(text, str) and name != key}
    texts = {**others, RESPONSE: response, SOURCE: source or ""}
    if row.get("meta"):
        report.losses["`meta` of tasks"] += 1
    judgements = [
        *_annotation_judgements(number, row, texts, report),
        *_prediction_judgements(number, row, texts, report),
    ]
    prompt_text = optional_text("data.prompt", data.get("prompt")) or ""
    used = (key, SOURCE, "prompt", "id")
    meta = {name: value for name, value in data.items() if name not in used}
    task_id = row.get("id") if data.get("id") is None else data["id"]
    prompt = text_prompt(row_id(task_id, number), prompt_text, meta)
    return JudgedResponse(prompt, response, tuple(judgements), source)


def _annotation_judgements(
    number: int, row: Mapping[str, Any], texts: Mapping[str, str], report: Report
) -> Iterator[Judgement]:
    """The judgements of a task's annotations.

    Args:
      texts: the text of each side, and the task's other texts by their keys.
    """
    for i, value in enumerate(check_list("annotations", row.get("annotations") or [])):
        name = f"annotations[{i}]"
        annotation = check_object(name, value)
        if annotation.get("was_cancelled"):
            report.losses["cancelled annotations"] += 1
            continue
        if annotation.get("ground_truth"):
            report.losses["`ground_truth` of annotations"] += 1
        annotator = _user(annotation.get("completed_by"))
        results = _results(f"{name}.result", annotation, report)
        for judgement in _regions(number, f"{name}.result", results, texts, report):
            yield replace(judgement, annotator=annotator)


def _prediction_judgements(
    number: int, row: Mapping[str, Any], texts: Mapping[str, str], report: Report
) -> Iterator[Judgement]:
    """The judgements of a task's predictions. `texts` has the text of each side."""
    for i, value in enumerate(check_list("predictions", row.get("predictions") or [])):
        name = f"predictions[{i}]"
        if isinstance(value, int):
            report.losses["predictions of which the export has only the number"] += 1
            continue
        prediction = check_object(name, value)
        if prediction.get("score") is not None:
            report.losses["scores of predictions"] += 1
        model = optional_text(f"{name}.model_version", prediction.get("model_version"))
        results = _results(f"{name}.result", prediction, report)
        for judgement in _regions(number, f"{name}.result", results, texts, report):
            yield replace(judgement, origin=model or SUGGESTED[0])


def _results(key: str, annotation: Mapping[str, Any], report: Report) -> list[Any]:
    """The results of an annotation or a prediction, which may be null.

    Without a result there is no aspect, so the judgement `no error` would be about nothing.
    """
    results = annotation.get("result")
    if "result" in annotation and results in (None, []):
        report.losses["annotations and predictions without results"] += 1
        return []
    return check_list(key, results)


def _user(value: Any) -> str | None:
    """The name of a user, who may be an object; None if the export does not name one."""
    if isinstance(value, Mapping):
        value = value.get("email") or value.get("id")
    name = "" if value is None else str(value)
    return name if name.strip() else None


def _regions(
    number: int, key: str, results: list[Any], texts: Mapping[str, str], report: Report
) -> Iterator[Judgement]:
    """The judgements of one annotation, region by region."""
    # id -> its results; a result without an id is a region of its own
    regions: dict[str, list[NamedResult]] = {}
    for i, value in enumerate(results):
        name = f"{key}[{i}]"
        result = check_object(name, value)
        if result.get("score") is not None:
            report.losses["scores of predicted results"] += 1
        region_id = name if result.get("id") is None else str(result["id"])
        regions.setdefault(region_id, []).append((name, result))
    for region in regions.values():
        yield from _region(number, region, texts, report)


def _region(
    number: int, results: list[NamedResult], texts: Mapping[str, str], report: Report
) -> Iterator[Judgement]:
    """The judgements of a region: one for each label.

    The main result is the first with `labels`, else the first that can be read. It has the aspect
    and the span.
    """
    readable = []
    for key, result in results:
        if result.get("type") in READABLE:
            readable.append((key, result))
        else:
            report.losses[f"results of the type {result.get('type')}"] += 1
    if not readable:
        return
    with_labels = [(key, result) for key, result in readable if result["type"] == "labels"]
    main = with_labels[0] if with_labels else readable[0]
    labels, parts = _details(main, readable, report)
    note = _note(readable)
    if note and parts.get("reason"):
        report.losses["notes of regions that have a reason"] += 1
    elif note:
        parts["reason"] = note
    if not labels and not parts:
        report.losses["regions without a label"] += 1
        return
    key, result = main
    to_name = str(result.get("to_name"))
    if to_name in texts and to_name not in (RESPONSE, SOURCE):
        report.losses[f"regions of the text `{to_name}`"] += 1
        return
    side = SOURCE if to_name == SOURCE and texts[SOURCE] else RESPONSE
    span = _span(number, main, texts[side], report)
    if span is None:
        return
    aspect = check_text(f"{key}.from_name", result.get("from_name"))
    if result.get("origin") in SUGGESTED:
        parts["origin"] = result["origin"]
    if labels:
        for label in labels:
            yield Judgement(aspect, label, *span, side=side, **parts)
    else:
        label = None if "score" in parts else COMMENT  # a judgement has a label or a score
        yield Judgement(aspect, label, *span, side=side, **parts)


def _span(
    number: int, main: NamedResult, text: str, report: Report
) -> tuple[int, int] | tuple[None, None] | None:
    """The marked characters: (None, None) if the result is about the whole text.

    Returns:
      None if they are not found; the report then has the problem.
    """
    key, result = main
    value = result.get("value") or {}
    if value.get("start") is None:
        return None, None
    quote = None
    if isinstance(value.get("text"), str):
        quote = optional_text(f"{key}.value.text", value["text"])
    start = whole_number(f"{key}.value.start", value["start"])
    end = whole_number(f"{key}.value.end", value.get("end"))
    return report.locate(number, key, text, quote, start, end, (UTF16, CODE_POINTS))


def _details(
    main: NamedResult, results: list[NamedResult], report: Report
) -> tuple[list[str], dict[str, Any]]:
    """The labels of a region, and the other parts that its judgements have in common.

    Only the main result's control gives labels. Choices of another control are a part if it is
    named in `PARTS`. Otherwise a judgement has no place for them, and they are counted as lost.
    """
    labels: list[str] = []
    parts: dict[str, Any] = {}
    for key, result in results:
        kind = result["type"]
        value = check_object(f"{key}.value", result.get("value") or {})
        control = str(result.get("from_name"))
        is_part = control in PARTS and result is not main[1]
        if kind in ("labels", "choices"):
            choices = check_texts(f"{key}.value.{kind}", value.get(kind, []))
            if is_part:
                for choice in choices:
                    _set_part(parts, control, choice, report)
            elif control == str(main[1].get("from_name")):
                labels += choices
            elif choices:
                report.losses["choices of a further control on a region"] += 1
        elif kind in ("number", "rating"):
            score = check_number(f"{key}.value.{kind}", value.get(kind))
            _set_part(parts, "score", score, report)
        else:
            text = _lines(key, value.get("text"))
            if text:
                _set_part(parts, control if is_part else "reason", text, report)
    return labels, parts


def _set_part(parts: dict[str, Any], name: str, value: Any, report: Report) -> None:
    """Set a part of a region's judgements. They hold one value, so a further one is lost."""
    if name in parts:
        report.losses["further values of a region's severity, score or text"] += 1
    else:
        parts[name] = value


def _note(results: list[NamedResult]) -> str | None:
    """The note that an annotator wrote on a region. All its results may repeat it."""
    notes = []
    for key, result in results:
        meta = check_object(f"{key}.meta", result.get("meta") or {})
        note = _lines(f"{key}.meta.text", meta.get("text") or [])
        if note.strip() and note not in notes:
            notes.append(note)
    return "\n".join(notes) or None


def _lines(key: str, value: Any) -> str:
    """A text, or a list of texts as lines."""
    lines = [value] if isinstance(value, str) else check_list(key, value)
    return "\n".join(check_text(key, line, may_be_blank=True) for line in lines)


# ---- Argilla -------------------------------------------------------------------------------------

# an exported aspect has several queries, whose names are the aspect with one of these ends
VERDICT = " (verdict)"
SCORE = " (score)"
OF_SOURCE = " (source)"


def argilla(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Argilla records in JSON, as `dataset.records.to_json` writes them (Argilla 2).

    Documented in docs.argilla.io/latest/how_to_guides/import_export. For each of the project's
    queries, `responses` has `[{value, user_id}, ...]` and `suggestions` has `{value, agent}`. The
    aspect is the name of the query. The judged text is the field `response` or `text`, or the only
    field.

    A value is a list of spans `{label, start, end}`, a label, a list of labels, or a rating. A
    ranking can also be a list of texts, and the file does not tell them apart: such lists are read
    as labels and counted.

    Spans have no text, so they cannot be verified. The page of Argilla makes and shows them in
    UTF-16 code units, whose number differs from that of code points behind a character such as an
    emoji (argilla-io/argilla issues 4834 and 5729). All spans are read in them. The report counts
    the spans that depend on it on their own: where a program wrote code points, they are wrong, or
    outside the text. Only answers of the page are sure to be right.

    Discarded answers are left out, and so are scores of suggestions and vectors. They are counted.
    """
    return read_objects(path, _argilla_record, report)


def _argilla_record(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    fields = check_object("fields", row.get("fields"))
    response_key = _argilla_text_key(fields)
    response = check_text(f"fields.{response_key}", fields[response_key], may_be_blank=True)
    if not report.has_response(number, f"fields.{response_key}", response):
        return None
    source = None
    if response_key != SOURCE:
        source = optional_text("fields.source", fields.get(SOURCE))
    texts = {RESPONSE: response, SOURCE: source}
    judgements = []
    for query, answers in _by_name("responses", row).items():
        for i, value in enumerate(check_list(f"responses.{query}", answers)):
            key = f"responses.{query}[{i}]"
            answer = check_object(key, value)
            if answer.get("status") == "discarded":
                report.losses["discarded answers"] += 1
                continue
            annotator = _user(answer.get("user_id"))
            value = answer.get("value")
            for judgement in _answers(number, f"{key}.value", query, value, texts, report):
                judgements.append(replace(judgement, annotator=annotator))
    for query, value in _by_name("suggestions", row).items():
        key = f"suggestions.{query}"
        answer = check_object(key, value)
        if answer.get("score") not in (None, []):
            report.losses["scores of suggestions"] += 1
        agent = optional_text(f"{key}.agent", answer.get("agent")) or "suggestion"
        value = answer.get("value")
        for judgement in _answers(number, f"{key}.value", query, value, texts, report):
            judgements.append(replace(judgement, origin=agent))
    if row.get("vectors"):
        report.losses["vectors of records"] += 1
    used = (response_key, SOURCE, "prompt")
    meta = {key: value for key, value in fields.items() if key not in used}
    meta |= check_object("metadata", row.get("metadata") or {})
    prompt_text = optional_text("fields.prompt", fields.get("prompt")) or ""
    prompt = text_prompt(row_id(row.get("id"), number), prompt_text, meta)
    return JudgedResponse(prompt, response, tuple(judgements), source)


def _argilla_text_key(fields: Mapping[str, Any]) -> str:
    """The key of the judged text. Raises `RowError` if several fields could be it."""
    for key in TEXT_KEYS:
        if key in fields:
            return key
    if len(fields) != 1:
        raise RowError("fields", f"has no text under {' or '.join(TEXT_KEYS)}")
    return next(iter(fields))


def _by_name(key: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answers or suggestions of a record, by the names of the project's queries."""
    if isinstance(row.get(key), list) and row[key]:
        raise RowError(
            key,
            "must be an object, it is a list: this is a record of Argilla 1, and those of Argilla 2"
            " are read. Open the data set with Argilla 2 and export it again",
        )
    return check_object(key, row.get(key) or {})


def _answers(
    number: int,
    key: str,
    query: str,
    value: Any,
    texts: Mapping[str, str | None],
    report: Report,
) -> list[Judgement]:
    """The judgements in an answer, without who gave it.

    Args:
      key: of the answer, for messages.
      query: the name of the project's query.
      value: the answer.
      texts: the text of each side.
    """
    is_of_source = query.endswith(OF_SOURCE) and texts[SOURCE] is not None
    side = SOURCE if is_of_source else RESPONSE
    aspect = check_text(key, query)
    for end in (VERDICT, SCORE, OF_SOURCE):
        aspect = aspect.removesuffix(end) or aspect
    if value is None or (isinstance(value, str) and not value.strip()):
        report.losses["answers without a value"] += 1
        return []
    if isinstance(value, str):
        return [Judgement(aspect, check_text(key, value))]
    if isinstance(value, int | float):
        return [Judgement(aspect, score=check_number(key, value))]
    judgements = []
    items = check_list(key, value)
    texts_in_list = [item for item in items if isinstance(item, str)]
    if len(texts_in_list) > 1:
        report.losses["lists of texts, which may be rankings"] += 1
    for i, item in enumerate(items):
        place = f"{key}[{i}]"
        if isinstance(item, str):
            judgements.append(Judgement(aspect, check_text(place, item)))
            continue
        mark = check_object(place, item)
        if "start" not in mark:
            report.losses["answers that are rankings"] += 1
            continue
        start = whole_number(f"{place}.start", mark["start"])
        end = whole_number(f"{place}.end", mark.get("end"))
        label = check_text(f"{place}.label", mark.get("label"))
        text = texts[side] or ""
        span = report.locate(number, place, text, None, start, end, (_argilla_reading(text, end),))
        if span is not None:
            judgements.append(Judgement(aspect, label, *span, side=side))
    return judgements


def _argilla_reading(text: str, end: int) -> Reading:
    """UTF-16 code units; code points where that is the same, so that reports tell them apart."""
    return CODE_POINTS if counts_alike(text, end, UTF16_UNIT) else UTF16


# ---- doccano -------------------------------------------------------------------------------------

DOCCANO_KEYS = ("label", "labels", "entities", "cats")  # keys of labels; a key is also the aspect


def doccano(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Doccano's JSON lines: `{text, label: [[start, end, label], ...]}` or with `entities`.

    Documented in doccano.github.io/doccano (JSONL and JSONL with relations). A label that is a text
    is about the whole text; projects of intents have such labels under `cats`, beside `entities`.
    An entity is `{start_offset, end_offset, label}`. Relations are lost. Spans have no text, so
    they cannot be verified.
    """
    return read_objects(path, _doccano_row, report)


def _doccano_row(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    response = check_text("text", row.get("text", row.get("data")), may_be_blank=True)
    keys = [name for name in DOCCANO_KEYS if row.get(name) is not None]
    if not keys:
        raise RowError("label", f"missing; labels are in one of {', '.join(DOCCANO_KEYS)}")
    if not report.has_response(number, "text", response):
        return None
    judgements = []
    for key in keys:
        for i, value in enumerate(check_list(key, row[key])):
            place = f"{key}[{i}]"
            if isinstance(value, str) and not value.strip():
                report.losses["blank labels"] += 1
                continue
            if isinstance(value, str):
                judgements.append(Judgement(key, check_text(place, value)))
                continue
            start, end, label = _doccano_mark(place, value)
            span = report.locate(number, place, response, None, start, end)
            if span is not None:
                judgements.append(Judgement(key, label, *span))
    relations = check_list("relations", row.get("relations") or [])
    if relations:
        report.losses["relations"] += len(relations)
    used = ("text", "data", "id", "relations", *DOCCANO_KEYS)
    meta = {name: value for name, value in row.items() if name not in used}
    prompt = Prompt(row_id(row.get("id"), number), "", meta=meta)
    return JudgedResponse(prompt, response, tuple(judgements))


def _doccano_mark(key: str, value: Any) -> tuple[int, int, str]:
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
