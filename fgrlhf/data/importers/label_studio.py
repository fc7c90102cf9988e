"""Exports of the annotation tool Label Studio."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fgrlhf.base.records import (
    check_list,
    check_number,
    check_object,
    check_text,
    check_texts,
)
from fgrlhf.data.importers.clean_answers import UNMARKED, with_clean_answers
from fgrlhf.data.importers.files import (
    COMMENT,
    judged_text_key,
    optional_text,
    prompt_key,
    quoted_keys,
    read_each,
    row_id,
    shown_prompt,
    user_name,
)
from fgrlhf.data.importers.json_min import OFFSETS, is_json_min, tasks_of
from fgrlhf.data.importers.report import Report
from fgrlhf.data.importers.shown_texts import ShownText
from fgrlhf.data.judgements import NO_ERROR, RESPONSE, SOURCE, JudgedResponse, Judgement
from fgrlhf.data.label_studio_project import read_project
from fgrlhf.data.read import read_rows

# types of results with labels of marks; the labels have the type as their key
MARKS = ("labels", "hypertextlabels", "paragraphlabels")
CHOICES = ("choices", "taxonomy")
READABLE = (*MARKS, *CHOICES, "number", "rating", "textarea")  # types of results
PARTS = ("severity", "reason", "evidence")  # names of controls that give a part of a judgement
SUGGESTED = ("prediction", "prediction-changed")  # `origin` of a result that a model suggested

MEDIA = ("image", "audio", "video", "pdf", "csv", "url")  # keys of what is no text
OTHER_RESULTS = (
    "annotations with other results but no mark, not read as `no error` (see aspect=NAME)"
)

NamedResult = tuple[str, Mapping[str, Any]]  # a result, with its key in the task for messages


def label_studio(
    path: str | Path, report: Report, aspect: str | None = None, project: str | None = None
) -> list[JudgedResponse]:
    """Label Studio's JSON export: tasks with `data`, `annotations` and `predictions`.

    Documented in labelstud.io/guide/task_format and labelstud.io/guide/export. Results of the types
    labels, hypertextlabels, paragraphlabels, choices, taxonomy, number, rating and textarea are
    read.

    The results with the same `id` are a region. One of them, its main result, has the aspect
    (`from_name`), the span and the labels: each label becomes a judgement. The region's other
    results add a score, and what the controls named `severity`, `reason` and `evidence` hold.
    Choices of any other control are lost, and so are second values of these parts. A note of a
    region (`meta.text`) is the reason if no control gives one.

    The editor counts code points in `Text` (seen in 1.23); where a region has its `text`, UTF-16
    code units are recognised too. Regions of `HyperText` are read by their `globalOffsets`, which
    count the text without tags, and those of `Paragraphs` by their turns; the turns become lines.

    An annotation that was submitted without a result is an answer: nothing is wrong. It becomes
    the judgement `no error` of every aspect that other rows of the file mark. Whether one with
    other results but no mark is such an answer, only the project's owner knows: see `aspect`.

    A person can annotate a task several times: these annotations count together, and one without a
    mark only if the others have none.

    Predictions become judgements whose origin is the `model_version`. Some exports have only the
    numbers of the predictions, and each annotation has the prediction that it began with.

    The judged text is under `response` or `text` of `data`, or under its only key with a text or a
    dialog, beside `prompt`, `source` and `id`.

    The form JSON-MIN has no ids and no types of results: a result is taken for one about the mark
    at its place. Answers that are single texts look like data, and a choice about a mark has lost
    its place. With `project`, the former are read and an annotation without an answer is one
    without a mark. Predictions and skipped tasks are not in this form.

    A judgement has no place for a model's confidence, so scores of predictions are lost. So are
    `meta` of a task, `ground_truth` of an annotation and drafts. All of these are counted.

    Args:
      aspect: the control in which every annotator was asked to mark. Each submitted annotation
        without a judgement of this aspect is `no error` in it.
      project: a file with the labelling configuration of the project, which tells the key of each
        text by its name. Without it, a text whose name is no key of the data is the response.
    """
    config = None if project is None else read_project(project)
    rows = read_rows(path)
    if any(map(is_json_min, rows)):
        is_clean_known = config is not None or aspect is not None
        rows = tasks_of(rows, config.controls if config else {}, is_clean_known, report)
    read = partial(_label_studio_task, aspect=aspect, names=config.texts if config else {})
    items = with_clean_answers(read_each(rows, read, report), aspect, report)
    if all(judgement.span is None for item in items for judgement in item.judgements):
        report.notes.pop(OTHER_RESULTS, None)  # a project in which nobody marks
    return items


def _label_studio_task(
    number: int,
    row: Mapping[str, Any],
    report: Report,
    aspect: str | None,
    names: Mapping[str, str],
) -> JudgedResponse | None:
    """A task. `names` has the key of each shown text by its name."""
    data = check_object("data", row.get("data"))
    key = _label_studio_text_key(data)
    response = ShownText.of(f"data.{key}", data[key])
    if not report.has_response(number, f"data.{key}", response.text):
        return None
    source = optional_text("data.source", data.get(SOURCE))
    texts = {}
    for name, text in data.items():
        if isinstance(text, str) and name != key:
            texts[name] = ShownText(text)
    texts |= {RESPONSE: response, key: response, SOURCE: ShownText(source or "")}
    texts |= {name: texts[shown] for name, shown in names.items() if shown in texts}
    if row.get("meta"):
        report.losses["`meta` of tasks"] += 1
    judgements = [
        *_annotation_judgements(number, row, texts, report, aspect),
        *_prediction_judgements(number, row, texts, report),
    ]
    name_of_prompt = prompt_key("data.", data, key)
    used = (key, SOURCE, "prompt", name_of_prompt, "id")
    meta = {name: value for name, value in data.items() if name not in used}
    if row.get("drafts"):
        report.losses["drafts of annotations"] += len(check_list("drafts", row["drafts"]))
    task_id = row.get("id") if data.get("id") is None else data["id"]
    prompt_id = row_id(task_id, number)
    prompt = shown_prompt(f"data.{name_of_prompt}", prompt_id, data.get(name_of_prompt), meta)
    return JudgedResponse(prompt, response.text, tuple(judgements), source)


def _label_studio_text_key(data: Mapping[str, Any]) -> str:
    """The key of the judged text. Raises `RowError` if several could be it, or none."""
    others = [key for key in data if key not in (*MEDIA, "prompt", SOURCE, "id")]
    shown = [key for key in others if isinstance(data[key], str | list)]
    way_out = (
        "Rename the key of the judged text in the export. Choices between two texts are read with"
        " from=label_studio_pairwise"
    )
    return judged_text_key("data", data, shown, f"text (keys: {quoted_keys(others)})", way_out)


def _annotation_judgements(
    number: int,
    row: Mapping[str, Any],
    texts: Mapping[str, ShownText],
    report: Report,
    aspect: str | None,
) -> Iterator[Judgement]:
    """The judgements of a task's annotations.

    Args:
      texts: the text of each side, and the task's other texts by their keys and names.
      aspect: an annotation without a judgement of it is `no error`; None: one without results is.
    """
    # releases before 1.0 called them completions
    key = "annotations" if row.get("annotations") is not None else "completions"
    for i, value in enumerate(check_list(key, row.get(key) or [])):
        name = f"{key}[{i}]"
        annotation = check_object(name, value)
        if annotation.get("was_cancelled"):
            report.losses["cancelled annotations"] += 1
            continue
        if annotation.get("ground_truth"):
            report.losses["`ground_truth` of annotations"] += 1
        annotator = user_name(annotation.get("completed_by"))
        if annotation.get("result") == []:
            yield Judgement(UNMARKED, NO_ERROR, annotator=annotator)
            continue
        results = _results(f"{name}.result", annotation, report)
        judgements = list(_regions(number, f"{name}.result", results, texts, report))
        for judgement in judgements:
            yield replace(judgement, annotator=annotator)
        is_clean = any(judgement.label == NO_ERROR for judgement in judgements)
        controls = [result.get("from_name") for result in results if isinstance(result, Mapping)]
        if aspect is not None and aspect not in controls and results:
            yield Judgement(UNMARKED, NO_ERROR, annotator=annotator)
        if aspect is None and results and not is_clean and not any(map(_is_mark, results)):
            report.notes[OTHER_RESULTS] += 1


def _is_mark(result: Any) -> bool:
    """Whether a result is about a part of the text."""
    value = result.get("value") if isinstance(result, Mapping) else None
    return isinstance(value, Mapping) and any(value.get(name) is not None for name in OFFSETS)


def _prediction_judgements(
    number: int, row: Mapping[str, Any], texts: Mapping[str, ShownText], report: Report
) -> Iterator[Judgement]:
    """The judgements of a task's predictions. `texts` has the text of each side."""
    kept = _kept_predictions(row)
    for i, value in enumerate(check_list("predictions", row.get("predictions") or [])):
        name = f"predictions[{i}]"
        if isinstance(value, int):
            value = kept.get(value, value)
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


def _kept_predictions(row: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The predictions that annotations began with, by their numbers."""
    kept = {}
    for annotation in check_list("annotations", row.get("annotations") or []):
        prediction = annotation.get("prediction") if isinstance(annotation, Mapping) else None
        if isinstance(prediction, Mapping) and isinstance(prediction.get("id"), int):
            kept[prediction["id"]] = prediction
    return kept


def _results(key: str, annotation: Mapping[str, Any], report: Report) -> list[Any]:
    """The results of an annotation or a prediction, which may be null."""
    results = annotation.get("result")
    if "result" in annotation and results in (None, []):
        report.losses["annotations and predictions without results"] += 1
        return []
    return check_list(key, results)


def _regions(
    number: int, key: str, results: list[Any], texts: Mapping[str, ShownText], report: Report
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
        for part in _by_offsets(region):
            yield from _region(number, part, texts, report)


def _by_offsets(results: list[NamedResult]) -> list[list[NamedResult]]:
    """The results of one id. Those of other offsets, as scripts write, are a region of their own.

    Results without offsets belong to the first region.
    """
    regions: dict[str, list[NamedResult]] = {}
    without: list[NamedResult] = []
    for named in results:
        value = named[1].get("value")
        offsets = [value.get(name) for name in OFFSETS] if isinstance(value, Mapping) else [None]
        if all(place is None for place in offsets):
            without.append(named)
        else:
            regions.setdefault(repr(offsets), []).append(named)
    if not regions:
        return [results]
    first, *others = regions.values()
    in_first = [named for named in results if named in first or named in without]
    return [in_first, *others]


def _region(
    number: int, results: list[NamedResult], texts: Mapping[str, ShownText], report: Report
) -> Iterator[Judgement]:
    """The judgements of a region: one for each label.

    The main result is the first with labels of marks, else the first that can be read. It has the
    aspect and the span.
    """
    readable = []
    for key, result in results:
        if result.get("type") in READABLE:
            readable.append((key, result))
        else:
            report.losses[f"results of the type {result.get('type')}"] += 1
    if not readable:
        return
    with_labels = [(key, result) for key, result in readable if result["type"] in MARKS]
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
    text = texts.get(to_name, texts[RESPONSE])
    if not any(text is texts[side] for side in (RESPONSE, SOURCE)):
        report.losses[f"regions of the text `{to_name}`"] += 1
        return
    side = SOURCE if text is texts[SOURCE] and text.text else RESPONSE
    value = result.get("value") or {}
    span = texts[side].find(number, key, value, report)
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
        if kind in (*MARKS, *CHOICES):
            choices = _choices(f"{key}.value.{kind}", kind, value)
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


def _choices(key: str, kind: str, value: Mapping[str, Any]) -> list[str]:
    """Labels or choices. Those of a taxonomy are paths: `Fluency/Grammar`."""
    values = value.get(kind, [])
    if kind == "taxonomy":
        values = ["/".join(check_texts(key, path)) for path in check_list(key, values)]
    return list(check_texts(key, values))


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
