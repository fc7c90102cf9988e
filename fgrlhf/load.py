"""Load a task by name, and find the files that belong to it."""

import os
import re
import sys
from pathlib import Path

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.configs.user_class import import_module
from fgrlhf.task import NO_TASK, Task


def task_or_none(name: str) -> Task:
    """The task with a name; of "", the one that stands for no task."""
    return load_task(name) if name else NO_TASK


def load_task(name: str) -> Task:
    """Load a task by name: `tasks.words`, `words`, or any importable module with a `TASK`.

    Raises:
      UserError: there is no such module, or it has no `TASK`.
    """
    dotted = name.strip().strip("/").replace("/", ".")
    without_task = None
    for candidate in _possible_modules(dotted):
        try:
            module = import_module(candidate)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing and f"{candidate}.".startswith(f"{missing}."):
                continue  # the candidate or its package is missing, not an import of the task
            raise UserError(
                f"the task `{shorten(name)}` cannot be imported: {shorten(error)}"
            ) from None
        task = getattr(module, "TASK", None)
        if isinstance(task, Task):
            if task.segmenters:
                from fgrlhf.reward_utils import add_segmenters

                add_segmenters(task.segmenters)
            return task
        if candidate.endswith(".task"):
            without_task = without_task or module
    if without_task is not None:
        raise UserError(
            f"{os.path.relpath(without_task.__file__ or without_task.__name__)} defines no task:"
            " write TASK = Task(name=..., ...), with Task from fgrlhf.task"
        )
    if dotted.endswith((".yml", ".yaml")):
        raise UserError(
            f"`{shorten(name)}` is a config, not a task: name the task before it. Every override"
            " after the config has the form section.key=value"
        )
    folder = _pages_folder(dotted)
    if folder is not None:
        raise UserError(
            f"{folder} has feedback pages and no task.py, which training needs: write"
            f" {folder / 'task.py'} with these three lines, where docs/tasks.md tells what more a"
            ' task may have:\n"""My task."""\nfrom fgrlhf.task import Task\n'
            f'TASK = Task(name="{folder.name}")'
        )
    known = suggestion(dotted.rpartition(".")[2], _shipped_tasks())
    raise UserError(
        f"there is no task `{shorten(name)}`: {known}. A task is a package with a"
        " task.py that defines TASK; run from the folder that contains `tasks`"
    )


def _pages_folder(dotted: str) -> Path | None:
    """The folder in the working directory that has the feedback pages of a task; None without."""
    if not _possible_modules(dotted):
        return None
    path = Path(*dotted.split("."))
    places = (Path("tasks") / path, path)
    # unlike `Path.is_file`, this is false for names that are too long for the file system
    return next((one for one in places if os.path.isfile(one / "interface_html/schema.js")), None)


def _possible_modules(dotted: str) -> list[str]:
    """The modules that may define a task of this name; [] if it is not the name of a module."""
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", dotted) is None:
        return []
    modules = [f"{dotted}.task", dotted]
    if "." not in dotted:
        modules.insert(0, f"tasks.{dotted}.task")
    return modules


def code_of(task: Task) -> dict[str, str]:
    """The Python files in the folder of the task's `task.py`, except its tests.

    Returns:
      the file's name in that folder -> its path, relative to the working directory; {} for a task
      that is not in a `task.py`.
    """
    folder = _folder_of(task)
    if folder is None:
        return {}
    files = {}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if "tests" not in name.parts:
            files[name.as_posix()] = os.path.relpath(path)
    return files


def data_of(task: Task) -> list[str]:
    """The files in the folder `data` of a task that generates its prompts, perhaps from them.

    Returns:
      absolute paths, without those of code; [] for a task that reads its prompts from files, which
      configs name, or that is not in a `task.py`.
    """
    folder = _folder_of(task)
    if folder is None or task.generate is None:
        return []
    files = []
    for path in sorted((folder / "data").glob("*")):
        if path.is_file() and path.suffix not in (".py", ".sh"):
            files.append(str(path.absolute()))
    return files


def prompts_file(data_dir: str | Path | None, split: str) -> Path | None:
    """The file with a split's prompts: SPLIT.json or, if there is none, SPLIT.jsonl.

    None if no folder is given and the task generates them.
    """
    if data_dir is None:
        return None
    file = Path(data_dir) / f"{split}.json"
    lines = file.with_suffix(".jsonl")
    return lines if lines.exists() and not file.exists() else file


def _folder_of(task: Task) -> Path | None:
    """The folder of the imported `task.py` that defines the task; None if no such file does."""
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "")
        if file.name == "task.py" and vars(module).get("TASK") is task:
            return file.parent
    return None


def _shipped_tasks() -> list[str]:
    """The tasks in the folder `tasks` of the working directory."""
    return sorted(path.parent.name for path in Path("tasks").glob("*/task.py"))
