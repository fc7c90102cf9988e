"""Write all submissions in a server's database as JSON lines, in the order of their arrival.

    fgrlhf feedback submissions NAME db=feedback.sqlite out=submissions.jsonl

Each line has what the rows of a feedback file cannot hold: `item`, `annotator`, `page`, `revision`
(1 for the annotator's first submission of the item), `created` (UTC), `order` (indices of the
outputs as they were shown), `seconds` (`active` and `wall`), `guideline` and `guideline_sha256`,
and the submitted `doc`. Nothing is combined or left out. Then come lines with `skipped`,
`{reason, text}`: items that annotators have skipped and not reopened.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import StrictModel
from fgrlhf.data.problems import counted
from fgrlhf.errors import run_main
from fgrlhf.files import write_jsonl
from interface_html.database import Submission, read_database
from interface_html.skips import Skip, read_skips
from interface_html.tasks import TASK_HELP, feedback_of


class Settings(StrictModel):
    """The database to read."""

    task: str = Field(description=TASK_HELP)
    db: str = Field(default="outputs/feedback/feedback.sqlite", description="the server's database")
    out: str = Field(description="the JSON lines file to write")


def submission_json(submission: Submission) -> dict[str, Any]:
    """A submission as a line of the file."""
    return {
        "item": submission.item,
        "annotator": submission.annotator,
        "page": submission.page,
        "revision": submission.revision,
        "created": _time_text(submission.created),
        "order": submission.shown,
        "seconds": {"active": submission.seconds, "wall": submission.wall},
        "guideline": submission.guideline,
        "guideline_sha256": submission.guideline_sha256,
        "doc": submission.doc,
    }


def skip_json(skip: Skip) -> dict[str, Any]:
    """A skipped item as a line of the file."""
    return {
        "item": skip.item,
        "annotator": skip.annotator,
        "page": skip.page,
        "created": _time_text(skip.created),
        "skipped": {"reason": skip.reason, "text": skip.text},
    }


def _time_text(seconds: float) -> str:
    """A time in seconds since 1970 as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def write_submissions(settings: Settings) -> int:
    """Write the file, whole or not at all. Returns the number of lines.

    Raises:
      UserError: the database cannot be read or belongs to another task.
    """
    task = feedback_of(settings.task)
    _, submissions = read_database(settings.db, task.schema.task)
    skips = read_skips(settings.db)
    lines = [submission_json(submission) for submission in submissions]
    write_jsonl(settings.out, [*lines, *(skip_json(skip) for skip in skips)])
    skipped = f"; {counted(len(skips), 'skip')}" if skips else ""
    print(f"{settings.out}: {counted(len(submissions), 'submission')}{skipped}")
    return len(submissions)


def main(argv: Sequence[str] | None = None) -> None:
    usage = "usage: fgrlhf feedback submissions TASK [key=value ...]"
    write_submissions(settings_from(Settings, argv, usage))


if __name__ == "__main__":
    run_main(main)
