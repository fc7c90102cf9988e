"""Loading of the task that a feedback program works with."""

import importlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.user_class import search_working_folder
from interface_html.format import FeedbackFormat, Item
from interface_html.row_format import RowFormat
from interface_html.schema import Schema, load_schema

TASK_HELP = "the task: a folder of tasks/, or any package with an interface_html/schema.js"
DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class FeedbackTask:
    """A task as the feedback programs use it.

    Args:
      schema: the contents of its pages.
      format: reads and writes its files.
      folder: the folder of its schema.js, its pages and, if it has one, its format.js.
    """

    schema: Schema
    format: FeedbackFormat
    folder: Path

    @property
    def scripts(self) -> tuple[Path, ...]:
        """The task's own scripts of its pages, schema.js first."""
        paths = (self.folder / "schema.js", self.folder / "format.js")
        return tuple(path for path in paths if path.exists())

    def content(self, item: Item) -> tuple[str, ...]:
        """The title and the texts to judge. Items with the same content are the same item."""
        fields = self.schema.fields
        return tuple(item.row[key] for key in (fields.title, *fields.outputs))


def feedback_of(task: str) -> FeedbackTask:
    """The task with a name: a folder of `tasks`, with or without `tasks.`, or another package.

    The package has `interface_html/schema.js`. If its files do not have the default format, it also
    has a module `feedback_format` with a `FeedbackFormat` named FORMAT.

    Raises:
      UserError: there is no such package, or it has no schema, or the schema is of another task.
    """
    for package in (f"tasks.{task}", task):
        folder = _package_folder(package)
        if folder is not None and (folder / "interface_html" / "schema.js").is_file():
            folder = folder / "interface_html"
            schema, row_format = load_schema(folder / "schema.js"), _format_of(package)
            name = package.rpartition(".")[2].lower()
            if schema.task != name:
                raise UserError(
                    f"{folder / 'schema.js'}: its `task` is `{shorten(schema.task)}`, under which"
                    f" browsers and databases keep the work: write `{name}`, the name of the folder"
                )
            if schema.mark_outputs and not isinstance(row_format, RowFormat):
                raise UserError(
                    f"{folder / 'schema.js'}: `mark_outputs` needs the default format of rows: the"
                    " task's own `feedback_format` has marks in the first output only"
                )
            return FeedbackTask(schema, row_format, folder)
    raise UserError(
        f"task={shorten(task, 80)}: there is no such task with feedback pages. Name a folder of"
        " tasks/, or a package, that has an interface_html/schema.js, and run the command in the"
        " folder that contains it"
    )


def _package_folder(package: str) -> Path | None:
    """The folder of a package, without importing it; None if it does not exist."""
    if not DOTTED_NAME.fullmatch(package):
        return None
    search_working_folder()
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _format_of(package: str) -> FeedbackFormat:
    module = f"{package}.feedback_format"
    if importlib.util.find_spec(module) is None:
        return RowFormat()
    return importlib.import_module(module).FORMAT
