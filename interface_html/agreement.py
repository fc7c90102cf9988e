"""Measure the agreement of annotators, with intervals over prompts.

    fgrlhf feedback agreement NAME db=feedback.sqlite out=agreement.json
    fgrlhf feedback agreement NAME files=a.json,b.json \\
        records=a_record.json,b_record.json

Files are matched by the texts of their rows, so annotators may have judged different items, in any
order. For an undefined figure the report gives the reason.
"""

from dataclasses import asdict

from pydantic import Field

from fgrlhf.base.errors import UserError, counted
from fgrlhf.base.files import write_json
from fgrlhf.configs.strict import FilePath
from fgrlhf.data.agreement.report import WIDTH, figure_lines, figures_json, weight_notes
from fgrlhf.stats import Figure
from interface_html.agreement_figures import report, shared_responses
from interface_html.annotator_pairs import judged_counts, pair_agreements, shared_counts
from interface_html.judged_items import JudgedItem, judged_in_database, judged_in_files
from interface_html.outputs import OutputSettings
from interface_html.tasks import TASK_HELP, FeedbackTask, feedback_of


class FeedbackAgreementSettings(OutputSettings):
    """The judgements to compare."""

    task: str = Field(description=TASK_HELP)
    db: FilePath | None = Field(default=None, description="the server's database")
    files: str = Field(
        default="",
        description="instead of db: feedback files, one per annotator, separated by commas",
    )
    records: str = Field(
        default="", description="the record.json of each file: orders shown and active times"
    )
    out: FilePath | None = Field(default=None, description="a JSON file to write the figures to")


def write_report(settings: FeedbackAgreementSettings) -> dict[str, Figure]:
    """Print what was judged, the figures and the agreement of every two annotators.

    They are written to `out` if it is set.

    Raises:
      UserError: a file cannot be read, or neither or both of db and files are set.
    """
    task, judged = _read_judgements(settings)
    figures = report(task, judged)
    notes = weight_notes(shared_responses(task.schema, judged))
    shared = shared_counts(judged)
    by_annotator = judged_counts(judged)
    pairs = pair_agreements(task.schema, judged)
    for name, count in shared.items():
        print(f"{name:<{WIDTH}} {count}")
    for name, count in by_annotator.items():
        print(f"  {name}: {counted(count, 'item')}")
    for note in notes:
        print(f"note: {note}")
    for line in figure_lines(figures):
        print(line)
    for pair in pairs:
        print(f"  {pair}")
    if settings.out:
        content = figures_json(figures)
        content["counts"] = shared
        content["items by annotator"] = by_annotator
        content["annotator pairs"] = [asdict(pair) for pair in pairs]
        write_json(settings.out, content)
    return figures


def _read_judgements(settings: FeedbackAgreementSettings) -> tuple[FeedbackTask, list[JudgedItem]]:
    paths = [path for path in settings.files.split(",") if path]
    records = [path for path in settings.records.split(",") if path]
    if bool(settings.db) == bool(paths):
        raise UserError(
            "set either a database (db=...) or feedback files (files=anna.json,ben.json)"
        )
    task = feedback_of(settings.task)
    if settings.db:
        return task, judged_in_database(task, settings.db)
    return task, judged_in_files(task, paths, records)
