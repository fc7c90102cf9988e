"""Writes the prompts of a published data set, which the task names (`Task.published`).

    fgrlhf prompts TASK data_dir=FOLDER [source=FOLDER_OR_FILE] [subset_size=1000]

Without `source` the set is fetched from the Hugging Face hub; fgrlhf/data/published.py lists the
other sources. Writes train.json, dev.json and test.json, for some tasks also sft.json (the
demonstrations) and labelled.json (texts from which a scorer can learn).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from, task_and_rest
from fgrlhf.configs.strict import Count, FilePath, StrictModel
from fgrlhf.data.published import FIXTURE, prompt_files
from fgrlhf.task import Task

USAGE = "usage: fgrlhf prompts TASK data_dir=... [key=value ...]"


class PublishedSettings(StrictModel):
    """Which rows to use, and where to write the prompts."""

    data_dir: FilePath = Field(description="folder of the prompts")
    source: FilePath | None = Field(
        default=None,
        description=(
            f"folder or file of a local copy; {FIXTURE}: a few rows of the task's own; null: the"
            " Hugging Face hub"
        ),
    )
    subset_size: Count | None = Field(
        default=None,
        description="most rows of the set for each file, chosen by a hash; null: all",
    )


def write_prompts(task: Task, settings: PublishedSettings) -> list[Path]:
    """Write all files of the task's set, and return their paths.

    Raises:
      UserError: the task names no published set, or its rows cannot be used. Then nothing is
        written.
    """
    if task.published is None:
        raise UserError(
            f"the task `{task.name}` names no published data set (Task.published): give its own"
            " files to the stages"
        )
    paths = []
    files = prompt_files(task.published, settings.source, settings.subset_size)
    _check_source_is_kept(settings, files)
    for name, rows in files.items():
        path = Path(settings.data_dir) / name
        write_json(path, rows)
        print(f"{path}: {len(rows):,} rows")
        paths.append(path)
    return paths


def _check_source_is_kept(settings: PublishedSettings, names: Iterable[str]) -> None:
    """Raise `UserError` if a file of the source, or in its folder, would be replaced."""
    if settings.source is None:
        return
    source = Path(settings.source).resolve()
    for name in names:
        path = (Path(settings.data_dir) / name).resolve()
        if path == source or (path.exists() and source in path.parents):
            raise UserError(
                f"{path} is in the source, whose files are not replaced: give a data_dir outside"
                f" {source}"
            )


def main(argv: Sequence[str] | None = None) -> None:
    task, rest = task_and_rest(argv, USAGE)
    write_prompts(task, settings_from(PublishedSettings, rest, USAGE))


if __name__ == "__main__":
    run_main(main)
