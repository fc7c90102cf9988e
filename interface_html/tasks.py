"""The task that a feedback program works for."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from fgrlhf.errors import UserError, shorten
from interface_html.format import FeedbackFormat
from interface_html.row_format import RowFormat
from interface_html.schema import Schema, load_schema

TASKS = Path(__file__).parents[1] / "tasks"
TASK_HELP = "the task: the name of its folder in tasks/"


@dataclass(frozen=True)
class FeedbackTask:
    """A task as the feedback programs use it.

    Args:
      schema: what its pages show and ask.
      format: how its files hold items and feedback.
      folder: where its schema.js, its pages and, if it has one, its format.js are.
    """

    schema: Schema
    format: FeedbackFormat
    folder: Path

    @property
    def scripts(self) -> tuple[Path, ...]:
        """The task's own scripts of its pages."""
        paths = (self.folder / "schema.js", self.folder / "format.js")
        return tuple(path for path in paths if path.exists())


def feedback_of(task: str) -> FeedbackTask:
    """The task with this name. Raises `UserError` where it has no pages."""
    name = task.removeprefix("tasks.")
    folder = TASKS / name / "interface_html"
    if not name.isidentifier() or not (folder / "schema.js").is_file():
        names = sorted(path.parts[-3] for path in TASKS.glob("*/interface_html/schema.js"))
        raise UserError(
            f"task={shorten(task, 80)}: there is no such task with feedback pages. Give one of"
            f" {', '.join(names)}, or write tasks/<task>/interface_html/schema.js"
        )
    return FeedbackTask(load_schema(folder / "schema.js"), _format_of(name), folder)


def _format_of(name: str) -> FeedbackFormat:
    module = f"tasks.{name}.feedback_format"
    if importlib.util.find_spec(module) is None:
        return RowFormat()
    return importlib.import_module(module).FORMAT
