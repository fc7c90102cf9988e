"""Exports of annotation tools: Label Studio, Argilla and doccano."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fgrlhf.data.importers.files import (
    optional_text,
    read_objects,
    text_prompt,
    whole_number,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import RESPONSE, SOURCE, JudgedResponse, Judgement
from fgrlhf.data.locate import CODE_POINTS, UTF16
from fgrlhf.data.rows import RowError, check_list, check_number, check_object, check_text
from fgrlhf.text_types import Prompt

COMMENT = "comment"  # the label of a free text about a whole response

# ---- Label Studio --------------------------------------------------------------------------------

READABLE = ("labels", "choices", "number", "rating", "textarea")  # types of results
PARTS = ("severity", "reason", "evidence")  # control tags of a region in an exported project
SUGGESTED = ("prediction", "prediction-changed")  # `origin` of a result that a model suggested
TEXT_KEYS = (RESPONSE, "text")  # of `data`, the text in which people mark

NamedResult = tuple[str, Mapping[str, Any]]  # its key in the task, for messages, and the result


def label_studio(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Label Studio's JSON export: tasks with `data`, `annotations` and `predictions`.

    Documented in labelstud.io/guide/task_format and labelstud.io/guide/export. Results of the types
    labels, choices, number, rating and textarea are read; the aspect is `from_name`. Results with
    one `id` are one region, whose judgements have the labels of one control, with the severity,
    the reason, the evidence and the score that other controls give; choices of further controls
    are lost. A note of a region (`meta.text`) is the reason if no control gives one. The editor
    counts UTF-16 code units; where a region has its `text`, code points are recognised too.
    Predictions become judgements whose origin is the `model_version`; some exports have only their
    numbers.
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
    texts = {RESPONSE: response, SOURCE: source or ""}
    judgements = []
    for i, value in enumerate(check_list("annotations", row.get("annotations") or [])):
        name = f"annotations[{i}]"
        annotation = check_object(name, value)
        if annotation.get("was_cancelled"):
            report.losses["cancelled annotations"] += 1
            continue
        annotator = _user(annotation.get("completed_by"))
        results = _results(f"{name}.result", annotation, report)
        for judgement in _regions(number, f"{name}.result", results, texts, report):
            judgements.append(_with(judgement, annotator=annotator))
    for i, value in enumerate(check_list("predictions", row.get("predictions") or [])):
        name = f"predictions[{i}]"
        if isinstance(value, int):
            report.losses["predictions of which the export has only the number"] += 1
            continue
        prediction = check_object(name, value)
        model = optional_text(f"{name}.model_version", prediction.get("model_version"))
        results = _results(f"{name}.result", prediction, report)
        for judgement in _regions(number, f"{name}.result", results, texts, report):
            judgements.append(_with(judgement, origin=model or SUGGESTED[0]))
    prompt_text = optional_text("data.prompt", data.get("prompt")) or ""
    used = (key, SOURCE, "prompt", "id")
    meta = {name: value for name, value in data.items() if name not in used}
    name = data.get("id", row.get("id", number))
    prompt = text_prompt(str(name), prompt_text, meta)
    return JudgedResponse(prompt, response, tuple(judgements), source)


def _results(key: str, annotation: Mapping[str, Any], report: Report) -> list[Any]:
    """The results of an annotation or a prediction, which may be null.

    One without a result names no aspect, so it cannot become the judgement `no error`.
    """
    results = annotation.get("result")
    if "result" in annotation and results in (None, []):
        report.losses["annotations and predictions without results"] += 1
        return []
    return check_list(key, results)


def _user(value: Any) -> str | None:
    """The name of a user, who is a number or an object."""
    if isinstance(value, Mapping):
        value = value.get("email") or value.get("id")
    return None if value is None else str(value)


def _with(judgement: Judgement, **parts: Any) -> Judgement:
    return Judgement(**(vars(judgement) | {key: part for key, part in parts.items() if part}))


def _regions(
    number: int, key: str, results: list[Any], texts: Mapping[str, str], report: Report
) -> Iterator[Judgement]:
    """The judgements of one annotation: one for every `id` of its results."""
    regions: dict[str, list[NamedResult]] = {}
    for i, value in enumerate(results):
        name = f"{key}[{i}]"
        result = check_object(name, value)
        regions.setdefault(str(result.get("id", name)), []).append((name, result))
    for parts in regions.values():
        yield from _region(number, parts, texts, report)


def _region(
    number: int, results: list[NamedResult], texts: Mapping[str, str], report: Report
) -> Iterator[Judgement]:
    """The judgements of results with one id: one for each label of the main one.

    The main result is the first with `labels`, else the first that can be read; it has the aspect
    and the span. The others add details.
    """
    readable = []
    for key, result in results:
        if result.get("type") in READABLE:
            readable.append((key, result))
        else:
            report.losses[f"results of the type {result.get('type')}"] += 1
    if not readable:
        return
    main = next((item for item in readable if item[1]["type"] == "labels"), readable[0])
    labels, parts = _details(main, readable, report)
    note = _note(readable)
    if note and parts.get("reason"):
        report.losses["notes of regions that have a reason"] += 1
    elif note:
        parts["reason"] = note
    if not labels and all(part is None for part in parts.values()):
        report.losses["regions without a label"] += 1
        return
    key, result = main
    side = SOURCE if result.get("to_name") == SOURCE else RESPONSE
    span = _span(number, main, texts[side], report)
    if span is None:
        return
    aspect = check_text(f"{key}.from_name", result.get("from_name"))
    if result.get("origin") in SUGGESTED:
        parts["origin"] = result["origin"]
    if not labels and "score" not in parts:
        labels = [COMMENT]
    for label in labels or (None,):
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
    quote = optional_text(f"{key}.value.text", value["text"]) if _is_quote(value) else None
    start = whole_number(f"{key}.value.start", value["start"])
    end = whole_number(f"{key}.value.end", value.get("end"))
    return report.locate(number, key, text, quote, start, end, (UTF16, CODE_POINTS))


def _details(
    main: NamedResult, results: list[NamedResult], report: Report
) -> tuple[list[str], dict[str, Any]]:
    """The labels and the other parts of a region's judgements.

    Choices of a control other than the main result's are no labels of its aspect. If they are not
    one of `PARTS` either, a judgement has no place for them, and they are counted as lost.
    """
    labels: list[str] = []
    parts: dict[str, Any] = {}
    for key, result in results:
        kind = result["type"]
        value = check_object(f"{key}.value", result.get("value") or {})
        name = str(result.get("from_name"))
        is_part = name in PARTS and result is not main[1]
        if kind in ("labels", "choices"):
            texts_of = check_list(f"{key}.value.{kind}", value.get(kind, []))
            found = [check_text(f"{key}.value.{kind}[{i}]", t) for i, t in enumerate(texts_of)]
            if is_part and found:
                parts[name] = found[0]
            elif name == str(main[1].get("from_name")):
                labels += found
            elif found:
                report.losses["choices of a further control on a region"] += 1
        elif kind in ("number", "rating"):
            parts["score"] = check_number(f"{key}.value.{kind}", value.get(kind))
        else:
            text = _lines(key, value.get("text"))
            parts[name if is_part else "reason"] = text or None
    return labels, parts


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


def _is_quote(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("text"), str)


# ---- Argilla -------------------------------------------------------------------------------------

VERDICT, SCORE, OF_SOURCE = " (verdict)", " (score)", " (source)"  # ends of names of an export


def argilla(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Argilla records in JSON, as `dataset.records.to_json` writes them (Argilla 2).

    Documented in docs.argilla.io/latest/how_to_guides/import_export. `responses` has, for each of
    the project's queries, `[{value, user_id}, ...]`, and `suggestions` has `{value, agent}`. The
    aspect is the name. A value is a list of spans `{label, start, end}`, a label, several labels,
    or a rating. A ranking is a list of texts too, and the file does not tell them apart: such lists
    are read as labels and counted. Spans have no text, so they cannot be verified. The judged text
    is the field `response` or `text`, or the only one.
    """
    return read_objects(path, _argilla_record, report)


def _argilla_record(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    fields = check_object("fields", row.get("fields"))
    names = [name for name in TEXT_KEYS if name in fields] or list(fields)
    if not names or (len(fields) > 1 and names[0] not in TEXT_KEYS):
        raise RowError("fields", f"has no text under {' or '.join(TEXT_KEYS)}")
    response = check_text(f"fields.{names[0]}", fields[names[0]], may_be_blank=True)
    if not report.has_response(number, f"fields.{names[0]}", response):
        return None
    source = optional_text("fields.source", fields.get(SOURCE)) if names[0] != SOURCE else None
    texts = {RESPONSE: response, SOURCE: source}
    judgements = []
    for name, answers in _by_name("responses", row).items():
        key = f"responses.{name}"
        for i, value in enumerate(check_list(key, answers)):
            answer = check_object(f"{key}[{i}]", value)
            user = answer.get("user_id")
            parts: dict[str, Any] = {"annotator": None if user is None else str(user)}
            place = f"{key}[{i}].value"
            judgements += _answers(number, place, name, answer.get("value"), texts, parts, report)
    for name, value in _by_name("suggestions", row).items():
        key = f"suggestions.{name}"
        answer = check_object(key, value)
        parts = {"origin": optional_text(f"{key}.agent", answer.get("agent")) or "suggestion"}
        judgements += _answers(
            number, f"{key}.value", name, answer.get("value"), texts, parts, report
        )
    used = (names[0], SOURCE, "prompt")
    meta = {key: value for key, value in fields.items() if key not in used}
    meta |= check_object("metadata", row.get("metadata") or {})
    prompt_text = optional_text("fields.prompt", fields.get("prompt")) or ""
    prompt = text_prompt(str(row.get("id", number)), prompt_text, meta)
    return JudgedResponse(prompt, response, tuple(judgements), source)


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
    name: str,
    value: Any,
    texts: Mapping[str, str | None],
    parts: dict[str, Any],
    report: Report,
) -> list[Judgement]:
    """The judgements in an answer to one of the project's queries."""
    side = SOURCE if name.endswith(OF_SOURCE) and texts[SOURCE] is not None else RESPONSE
    aspect = check_text(key, name)
    for end in (VERDICT, SCORE, OF_SOURCE):
        aspect = aspect.removesuffix(end) or aspect
    if value is None or (isinstance(value, str) and not value.strip()):
        report.losses["answers without a value"] += 1
        return []
    if isinstance(value, str):
        return [Judgement(aspect, check_text(key, value), **parts)]
    if isinstance(value, int | float):
        return [Judgement(aspect, score=check_number(key, value), **parts)]
    judgements = []
    items = check_list(key, value)
    if sum(isinstance(item, str) for item in items) > 1:
        report.losses["lists of texts, which may be rankings"] += 1
    for i, item in enumerate(items):
        place = f"{key}[{i}]"
        if isinstance(item, str):
            judgements.append(Judgement(aspect, check_text(place, item), **parts))
            continue
        mark = check_object(place, item)
        if "start" not in mark:
            report.losses["answers that are rankings"] += 1
            continue
        start = whole_number(f"{place}.start", mark["start"])
        end = whole_number(f"{place}.end", mark.get("end"))
        label = check_text(f"{place}.label", mark.get("label"))
        span = report.locate(number, place, texts[side] or "", None, start, end)
        if span is not None:
            judgements.append(Judgement(aspect, label, *span, side=side, **parts))
    return judgements


# ---- doccano -------------------------------------------------------------------------------------

DOCCANO_KEYS = ("label", "labels", "entities", "cats")  # the aspects, too


def doccano(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Doccano's JSON lines: `{text, label: [[start, end, label], ...]}` or with `entities`.

    Documented in doccano.github.io/doccano (JSONL and JSONL with relations). Labels of a whole
    text are texts; projects of intents have them under `cats`, beside `entities`. An entity is
    `{start_offset, end_offset, label}`; relations are lost. Spans have no text, so they cannot be
    verified.
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
    return JudgedResponse(
        Prompt(str(row.get("id", number)), "", meta=meta), response, tuple(judgements)
    )


def _doccano_mark(key: str, value: Any) -> tuple[int, int, str]:
    """Start, end and label of a mark, a list or an object."""
    if isinstance(value, Mapping):
        parts = (value.get("start_offset"), value.get("end_offset"), value.get("label"))
    else:
        listed = check_list(key, value)
        if len(listed) != 3:
            raise RowError(key, "must be [start, end, label]")
        parts = tuple(listed)
    start, end, label = parts
    return whole_number(key, start), whole_number(key, end), check_text(key, label)
