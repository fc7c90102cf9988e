"""The labelling configuration of a project of Label Studio: its texts and its controls.

The configuration is XML (Settings, Labeling Interface, Code; documented in
labelstud.io/guide/setup). A tag with a `value` such as `$response` shows the text under this key of
a task's data. A tag with a `toName` is a control, with which people judge the shown text of that
name. The names are free, so only the configuration tells which control gives stars and which one a
number, and what the text of the response is called.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_text
from fgrlhf.data.judgements import NO_ERROR, RESPONSE, SOURCE, Losses

TEXT_TAG = "Text"
LABELS, CHOICES, NUMBER, RATING, TEXTAREA = "labels", "choices", "number", "rating", "textarea"
SCORES = (NUMBER, RATING)
RESPONSE_KEYS = (RESPONSE, "text")  # keys of the judged text in the data of a task

Result = dict[str, Any]  # of an annotation


@dataclass(frozen=True)
class Control:
    """A control of the page.

    Args:
      kind: the type of its results, such as `rating`.
      shown: the names of the texts that it judges.
      is_per_region: whether it judges marks rather than whole texts.
      is_one_line: whether people type single lines into it, each a text of its own.
    """

    kind: str
    shown: tuple[str, ...]
    is_per_region: bool = False
    is_one_line: bool = False


@dataclass(frozen=True)
class Project:
    """The texts and controls of a project.

    Args:
      texts: the name of each shown text -> its key in a task's data.
      controls: by their names.
    """

    texts: Mapping[str, str]
    controls: Mapping[str, Control]

    @property
    def response_key(self) -> str:
        """The key of the judged text in a task's data."""
        keys = self.texts.values()
        return next((key for key in RESPONSE_KEYS if key in keys), RESPONSE)

    def name_of(self, side: str) -> str | None:
        """The name of the text of a side; None if the project does not show it."""
        key = self.response_key if side == RESPONSE else SOURCE
        return next((name for name, shown in self.texts.items() if shown == key), None)

    def side_of(self, name: str) -> str:
        """The side of a shown text, or its key, if it is neither the response nor the source."""
        key = self.texts.get(name, name)
        return RESPONSE if key == self.response_key else key

    @property
    def region_score(self) -> str | None:
        """The name of the control that scores marks; None if there is none."""
        for name, control in self.controls.items():
            if control.is_per_region and control.kind in SCORES:
                return name
        return None


def read_project(path: str | Path) -> Project:
    """The labelling configuration in a file.

    Raises:
      UserError: it cannot be read, is not such XML, has no control, or shows the response in
        another way than as a text.
    """
    try:
        root = ElementTree.fromstring(read_text(path))
    except (ElementTree.ParseError, ValueError) as error:
        raise UserError(
            f"{path} is not the XML of a labelling configuration: {shorten(error)}. Copy it from"
            " the project's page: Settings, Labeling Interface, Code"
        ) from None
    texts: dict[str, str] = {}
    controls: dict[str, Control] = {}
    for tag in root.iter():
        name = tag.get("name")
        value = tag.get("value") or ""
        if name is None:
            continue
        if tag.get("toName"):
            controls[name] = _control(tag)
        elif value.startswith("$"):
            texts[name] = value.removeprefix("$")
            if tag.tag != TEXT_TAG and texts[name] in RESPONSE_KEYS:
                raise UserError(
                    f"{path} shows `{shorten(value)}` as {shorten(tag.tag)}, and marks can only be"
                    " written for Text: leave project=... out, and judge in a project with Text"
                )
    if not controls:
        raise UserError(
            f"{path} has no control, a tag with `name` and `toName`: is it the labelling"
            " configuration of a project?"
        )
    return Project(texts, controls)


def _control(tag: ElementTree.Element) -> Control:
    shown = tuple(name.strip() for name in (tag.get("toName") or "").split(","))
    is_per_region = (tag.get("perRegion") or "").lower() == "true"
    is_one_line = tag.get("rows", "1").strip() == "1"
    return Control(tag.tag.lower(), shown, is_per_region, is_one_line)


def fitted(task: Mapping[str, Any], project: Project, losses: Losses) -> dict[str, Any]:
    """A task as the project takes it: its keys, the names of its texts, the types of its controls.

    An annotator's `no error` of a control with labels is an answer without a mark of it.

    Args:
      task: as `fgrlhf.data.exporters.label_studio_rows` writes it.
      losses: gets the results that the project has no place for.
    """
    data = {}
    for key, value in task["data"].items():
        data[project.response_key if key == RESPONSE else key] = value
    for key in project.texts.values():
        data.setdefault(key, "")  # Label Studio refuses a task without it
    fitted_task = {**task, "data": data}
    for group in ("annotations", "predictions"):
        answers = []
        for answer in task[group]:
            results = [_fitted_result(result, project, losses) for result in answer["result"]]
            answers.append({**answer, "result": [result for result in results if result]})
        fitted_task[group] = answers
    return fitted_task


def _fitted_result(result: Result, project: Project, losses: Losses) -> Result | None:
    """A result with the control's type; None if the project has no place for it."""
    name, side = result["from_name"], result["to_name"]
    if name not in project.controls and result["type"] == NUMBER and "start" in result["value"]:
        name = project.region_score or name
    control = project.controls.get(name)
    if control is None:
        losses[f"answers of `{shorten(name, 40)}`, which is no control of the project"] += 1
        return None
    if control.kind.endswith(LABELS) and result["value"].get(CHOICES) == [NO_ERROR]:
        return None
    shown = project.name_of(side)
    if shown not in control.shown:
        losses[f"answers about the {side}, which `{shorten(name, 40)}` does not judge"] += 1
        return None
    value = _fitted_value(result, control)
    if value is None:
        losses[f"answers that are no {control.kind}, as `{shorten(name, 40)}` gives"] += 1
        return None
    return {**result, "from_name": name, "to_name": shown, "type": control.kind, "value": value}


def _fitted_value(result: Result, control: Control) -> dict[str, Any] | None:
    """The value of a result in the form of a control; None if it cannot have this form."""
    kind, value = result["type"], dict(result["value"])
    if kind == NUMBER and control.kind == RATING:
        number = value.pop(NUMBER)
        if number < 0 or not float(number).is_integer():
            return None
        return {**value, RATING: int(number)}
    if kind != control.kind:
        return None
    if kind == TEXTAREA and control.is_one_line:
        value["text"] = [line for text in value["text"] for line in text.split("\n")]
    return value
