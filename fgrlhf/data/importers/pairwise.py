"""Label Studio's choices between two texts (its control Pairwise) as comparisons."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError
from fgrlhf.base.records import RowError, check_list, check_object
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.importers.files import read_each, row_id, shown_prompt, user_name
from fgrlhf.data.importers.json_min import PAIRWISE, SELECTED, is_json_min, tasks_of
from fgrlhf.data.importers.report import Report
from fgrlhf.data.importers.shown_texts import ShownText
from fgrlhf.data.label_studio_project import Project, read_project
from fgrlhf.data.read import read_rows
from fgrlhf.data.rows import PROMPT

SIDES = ("left", "right")
# keys of the left and the right text in the templates of Label Studio
TEMPLATES = (("text1", "text2"), ("answer1", "answer2"))


def label_studio_pairwise(
    path: str | Path, report: Report, project: str | None = None
) -> list[Comparison]:
    """Tasks of a project with the control Pairwise, as comparisons of the left and right text.

    Documented in labelstud.io/tags/pairwise and labelstud.io/templates/pairwise_comparison. A
    result is `{from_name, type: "pairwise", value: {selected: "left" | "right"}}`: it does not say
    which texts were shown. These are `text1` and `text2`, or `answer1` and `answer2`, as in the
    templates; otherwise the project's configuration tells. The prompt is under `prompt`, or the
    only other text.

    Every annotator has one vote, so a pair is repeated for each. An annotation without a choice
    decides nothing, and who chooses both texts in several annotations has no vote. All of this is
    counted, as are tasks without a vote, which are left out, and other results.

    Args:
      project: a file with the labelling configuration of the project.

    Raises:
      UserError: the configuration cannot be read or has no control Pairwise.
    """
    config = None if project is None else read_project(project)
    keys = None if config is None else _compared_keys(str(project), config)
    rows = read_rows(path)
    if any(map(is_json_min, rows)):
        rows = tasks_of(rows, config.controls if config else {}, True, report)
    return read_each(rows, partial(_task, keys=keys), report)


def _compared_keys(path: str, project: Project) -> tuple[str, str]:
    """The keys of the left and the right text in the data of a task."""
    for control in project.controls.values():
        if control.kind == PAIRWISE and len(control.shown) == 2:
            left, right = (project.texts.get(name) for name in control.shown)
            if left is not None and right is not None:
                return left, right
    raise UserError(
        f"{path} has no Pairwise control of two texts whose `value` is a key, such as $text1: is it"
        " the labelling configuration of this project?"
    )


def _task(
    number: int, row: Mapping[str, Any], report: Report, keys: tuple[str, str] | None
) -> Comparison | None:
    data = check_object("data", row.get("data"))
    if keys is None:
        keys = next((pair for pair in TEMPLATES if all(key in data for key in pair)), None)
    if keys is None:
        raise RowError(
            "data",
            "has neither text1 and text2 nor answer1 and answer2, and only the labelling"
            " configuration tells which text is on the left: give project=FILE",
        )
    answers = tuple(Answer(ShownText.of(f"data.{key}", data.get(key)).text) for key in keys)
    others = [key for key in data if key not in (*keys, "id")]
    texts = [key for key in others if isinstance(data[key], str) and data[key].strip()]
    if PROMPT in texts or (isinstance(data.get(PROMPT), list) and data[PROMPT]):
        texts = [PROMPT]
    prompt_key = texts[0] if len(texts) == 1 else None
    if prompt_key is None:
        raise RowError(
            f"data.{PROMPT}",
            "missing, and there is not one other text: a comparison needs the text that both"
            " answer. Call its key `prompt` in the export",
        )
    pairs = _votes(row, report)
    if not pairs:
        report.losses["tasks without a choice"] += 1
        return None
    task_id = row.get("id") if data.get("id") is None else data["id"]
    meta = {key: data[key] for key in others if key != prompt_key}
    prompt_id = row_id(task_id, number)
    prompt = shown_prompt(f"data.{prompt_key}", prompt_id, data[prompt_key], meta)
    return Comparison(prompt, answers, tuple(pairs))


def _votes(row: Mapping[str, Any], report: Report) -> list[tuple[int, int]]:
    """The pairs (better, worse) that the annotators of a task chose, one for each of them."""
    if row.get("predictions"):
        report.losses["predictions"] += len(check_list("predictions", row["predictions"]))
    votes: dict[str, set[int]] = {}
    for i, value in enumerate(check_list("annotations", row.get("annotations") or [])):
        name = f"annotations[{i}]"
        annotation = check_object(name, value)
        if annotation.get("was_cancelled"):
            report.losses["cancelled annotations"] += 1
            continue
        user = user_name(annotation.get("completed_by"))
        chosen: set[int] = set()
        for k, item in enumerate(check_list(f"{name}.result", annotation.get("result") or [])):
            key = f"{name}.result[{k}]"
            result = check_object(key, item)
            if result.get("type") != PAIRWISE:
                report.losses[f"results of the type {result.get('type')}"] += 1
                continue
            side = check_object(f"{key}.value", result.get("value")).get(SELECTED)
            if side not in SIDES:
                raise RowError(f"{key}.value.{SELECTED}", f"must be {' or '.join(SIDES)}")
            chosen.add(SIDES.index(side))
        if not chosen:
            report.losses["annotations without a choice"] += 1
        votes.setdefault(name if user is None else f"user {user}", set()).update(chosen)
    both = sum(len(sides) > 1 for sides in votes.values())
    if both:
        report.losses["annotators who chose both texts of a task"] += both
    better = [next(iter(sides)) for sides in votes.values() if len(sides) == 1]
    return [(side, 1 - side) for side in better]
