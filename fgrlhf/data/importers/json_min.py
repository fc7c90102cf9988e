"""Label Studio's form JSON-MIN, as tasks of its form JSON.

A row has the data of a task and one annotation: under the name of each control the values of its
results, without their types. The converter (label_studio_sdk/converter, `prettify_result`) writes a
single choice and a single line as a text, and leaves out the places of choices about a mark. Where
there is no answer, a key of the data with the control's name takes its place.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import RESPONSE
from fgrlhf.data.label_studio_project import CHOICES, LABELS, TEXTAREA, Control

KEYS = ("annotator", "annotation_id", "lead_time")  # of such a row
OWN_KEYS = (*KEYS, "id", "created_at", "updated_at", "agreement")
OFFSETS = ("start", "end", "startOffset", "endOffset")  # keys of a mark
VALUES = (
    "labels",
    "hypertextlabels",
    "paragraphlabels",
    "choices",
    "taxonomy",
    "number",
    "rating",
)
AS_TEXTS = (CHOICES, TEXTAREA)  # controls of which a single answer is a text
SELECTED, PAIRWISE = "selected", "pairwise"  # the value of a choice between two texts, its type

Result = dict[str, Any]


def is_json_min(row: Any) -> bool:
    """Whether a row is in this form."""
    return isinstance(row, Mapping) and row.get("data") is None and any(key in row for key in KEYS)


def tasks_of(
    rows: Sequence[Any], controls: Mapping[str, Control], is_clean_known: bool, report: Report
) -> list[Any]:
    """The tasks in such rows, with all annotations of each. Other rows stay as they are.

    Without the project's controls, a text is taken for data, since nothing tells an answer from it.

    Args:
      controls: of the project, by their names; {} if they are not known.
      is_clean_known: whether an annotation without a known answer is one without a mark.
    """
    tasks: dict[str, Any] = {}
    for number, row in enumerate(rows):
        if not is_json_min(row):
            tasks[f"row {number}"] = row
            continue
        if not controls:
            report.notes[
                "rows of JSON-MIN, whose answers that are single texts stay keys (project=FILE)"
            ] += 1
        data: dict[str, Any] = {}
        results: list[Result] = []
        for key, value in row.items():
            found = None if key in OWN_KEYS else _results(key, value, controls.get(key), report)
            if found is not None:
                results += found
            elif key not in OWN_KEYS:
                data[key] = value
        task_id = row.get("id")
        new = {"id": task_id, "data": data, "annotations": []}
        task = tasks.setdefault(f"row {number}" if task_id is None else repr(task_id), new)
        if data != task["data"]:
            report.losses["further rows of a task with other texts than the first"] += 1
        if row.get("annotation_id") is not None:
            is_known = bool(results) or is_clean_known
            annotation = {"completed_by": row.get("annotator")}
            annotation["result"] = _with_ids(results) if is_known else None
            task["annotations"].append(annotation)
    return list(tasks.values())


def _results(key: str, value: Any, control: Control | None, report: Report) -> list[Result] | None:
    """The results in the answers to a control; None if the value is no answer."""
    results: list[Result] = []
    for answer in value if isinstance(value, list) else [value]:
        if isinstance(answer, str) and control is not None and control.kind not in AS_TEXTS:
            report.losses["values of the data under the name of a control"] += 1
            continue
        if isinstance(answer, str) and control is not None and control.is_per_region:
            report.losses["answers about marks, whose places JSON-MIN does not have"] += 1
            continue
        if isinstance(answer, str) and control is not None:
            answer = {"text" if control.kind == TEXTAREA else CHOICES: [answer]}
        kind = _kind(answer)
        if kind is None:
            if control is None:
                return None
            report.losses[f"results of the type {control.kind}"] += 1
            continue
        to_name = RESPONSE if control is None else control.shown[0]
        results.append({"from_name": key, "to_name": to_name, "type": kind, "value": answer})
    return results if results or control is not None else None


def _kind(answer: Any) -> str | None:
    """The type of the result with this value; None if there is none."""
    if not isinstance(answer, Mapping):
        return None
    if isinstance(answer.get(SELECTED), str):
        return PAIRWISE
    lines = answer.get("text")
    if isinstance(lines, list):
        return TEXTAREA
    return next((name for name in VALUES if answer.get(name) is not None), None)


def _with_ids(results: list[Result]) -> list[Result]:
    """The results, with the ids that they share with the first mark at their place."""
    marks: dict[str, str] = {}
    for number, result in enumerate(results):
        if result["type"].endswith(LABELS):
            result["id"] = str(number)
            marks.setdefault(_place(result), result["id"])
    for result in results:
        if "id" not in result and _place(result) in marks:
            result["id"] = marks[_place(result)]
    return results


def _place(result: Result) -> str:
    places = [result["value"].get(name) for name in OFFSETS]
    return repr(places if any(place is not None for place in places) else id(result))
