"""Write the pages of a task into its folder, where they open by double click.

    fgrlhf feedback task_pages NAME

Run it after a change of interface_html/templates or of the task's schema.js. These pages load their
scripts from interface_html/templates, so they work on this machine, or in another checkout of the
repository; interface_html/pages.py writes pages that can be sent to an annotator.
"""

import os
from pathlib import Path

from pydantic import Field

from fgrlhf.base.files import write_text
from fgrlhf.configs.strict import StrictModel
from interface_html.render import TEMPLATES, page_html
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of


def task_pages(task: FeedbackTask) -> dict[Path, str]:
    """The path and the text of each page of the task."""
    shared = Path(os.path.relpath(TEMPLATES, task.folder)).as_posix() + "/"
    return {
        task.folder / f"{page}.html": page_html(task, page, shared=shared, own="")
        for page in task.schema.pages
    }


class TaskPagesSettings(StrictModel):
    """The task whose pages to write."""

    task: str = Field(description=TASK_HELP)


def write_task_pages(settings: TaskPagesSettings) -> None:
    for path, text in task_pages(feedback_of(settings.task)).items():
        write_text(path, text)
        print(path)
