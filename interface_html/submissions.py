"""Write all submissions in a server's database as JSON lines, in the order of their arrival.

    fgrlhf feedback submissions NAME db=feedback.sqlite out=submissions.jsonl
    fgrlhf feedback submissions NAME db=feedback.sqlite out=judgements.jsonl format=judgements

With format=judgements the annotations that count are written as rows of judgements instead: see
judged.py.

Otherwise each line has what the rows of a feedback file cannot hold: `item`, `annotator`, `page`,
`revision` (1 for the annotator's first submission of the item), `created` (UTC), `order` (indices
of the outputs as they were shown), `seconds` (`active` and `wall`; null: unknown), `guideline` and
`guideline_sha256`, the submitted `doc`, and `suggestions`: whether the page showed the suggestions
of the item, and the verdict on each (null for items without suggestions). Nothing is combined or
left out. Lines about hidden items also have `check`, "gold" or "repeat"; their `item` is the id of
the gold row or of the repeated item. Decisions on items that `adjudicate` wrote have `role`,
"adjudicator", and `decided_between`: annotator and revision of each submission that the adjudicator
saw. Then come lines with `skipped`, `{reason, text}`: items that annotators have skipped and not
reopened.
"""

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from fgrlhf.base.errors import counted
from fgrlhf.base.files import write_jsonl
from fgrlhf.configs.strict import FilePath
from interface_html.checks import Check
from interface_html.format import Item
from interface_html.judged import write_judgements
from interface_html.outputs import OutputSettings
from interface_html.skips import Skip
from interface_html.stored import Study, Submission, read_database, read_fitting_study
from interface_html.submitted import decided_between, is_decided_on
from interface_html.suggestions import decisions_record
from interface_html.tasks import TASK_HELP, feedback_of


class SubmissionsSettings(OutputSettings):
    """The database to read."""

    task: str = Field(description=TASK_HELP)
    db: FilePath = Field(
        default="outputs/feedback/feedback.sqlite", description="the server's database"
    )
    out: FilePath = Field(description="the JSON lines file to write")
    format: Literal["submissions", "judgements"] = Field(
        default="submissions",
        description="submissions: everything as it was submitted; judgements: the latest annotation"
        " of each annotator as rows of judgements, for `fgrlhf data`",
    )


def _with_check(line: dict[str, Any], check: Check | None) -> dict[str, Any]:
    """A line about an item; about a hidden one, with its kind and the id that the lead knows."""
    if check is None:
        return line
    return {**line, "item": check.original, "check": check.kind}


def _submission_json(submission: Submission, item: Item) -> dict[str, Any]:
    """A submission of an item as a line of the file."""
    is_annotation = submission.page == "annotation"
    decisions = decisions_record(item.row, submission.doc) if is_annotation else None
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
        "suggestions": decisions,
    }


def _skip_json(skip: Skip) -> dict[str, Any]:
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


def write_submissions(settings: SubmissionsSettings) -> int:
    """Write the file, whole or not at all. Returns the number of lines or rows.

    Raises:
      UserError: the database cannot be read or belongs to another task.
    """
    task = feedback_of(settings.task)
    if settings.format == "judgements":
        study = read_fitting_study(settings.db, task.schema, ["annotation"])
        return write_judgements(task, study, settings.out)
    study = read_database(settings.db, task.schema.task)
    write_jsonl(settings.out, submission_lines(study))
    skipped = f"; {counted(len(study.skips), 'skip')}" if study.skips else ""
    count = len(study.all_submissions)
    print(f"{settings.out}: {counted(count, 'submission')}{skipped}")
    return count


def submission_lines(study: Study) -> list[dict[str, Any]]:
    """The lines of the file: all submissions by time, then the skipped items."""
    item_of = {item.id: item for item in study.all_items}
    lines = []
    for submission in study.all_submissions:
        item = item_of[submission.item]
        line = _with_check(_submission_json(submission, item), study.hidden.get(submission.item))
        if is_decided_on(item.row, submission.page):
            line["role"] = "adjudicator"
            line["decided_between"] = decided_between(item.row, submission.page)
        lines.append(line)
    for skip in study.skips:
        lines.append(_with_check(_skip_json(skip), study.hidden.get(skip.item)))
    return lines
