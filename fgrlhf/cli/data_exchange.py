"""`fgrlhf data import` and `fgrlhf data export`: formats of other projects and tools."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fgrlhf.base.errors import UserError, counted, first_problems, shorten, suggestion
from fgrlhf.base.files import write_json, write_text
from fgrlhf.cli.data_convert import CONVERSATIONS_HELP, preference_rows
from fgrlhf.cli.data_inspect import fits_format, print_counts
from fgrlhf.configs.strict import Count, FilePath, StrictModel, refuse
from fgrlhf.data import span_rows
from fgrlhf.data.exporters import EXPORTERS
from fgrlhf.data.format import Format
from fgrlhf.data.formats import COMPARISONS, SPANS
from fgrlhf.data.importers.registry import IMPORTERS, NO_IMPORT, check_keys, import_items
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import JUDGEMENTS, FeedbackRows, JudgedResponse, Losses
from fgrlhf.data.parts import split_units
from fgrlhf.data.read import (
    check_input_and_output,
    check_not_input,
    check_two_outputs,
    read_rows,
    write_rows,
)
from fgrlhf.data.votes import MAJORITY, combined
from fgrlhf.load import load_task

TRAINING_FORMATS = (SPANS.name, "trl_preference")  # of exports that programs train on
COMMON = ("to", "limit", "annotators", "dev", "dev_share")  # keys of every export


class ImportSettings(StrictModel):
    source: str = Field(
        alias="from",
        description="a published format: "
        + ", ".join(IMPORTERS)
        + "; or a task whose feedback rows are read",
    )
    aspect: str | None = Field(
        default=None,
        description="label_studio, potato: the control or scheme in which every annotator was asked"
        " to mark; each submitted annotation without it is `no error`",
    )
    items: str | None = Field(
        default=None, description="potato: the data file of the project, which has the texts"
    )
    project: str | None = Field(
        default=None,
        description="label_studio: a file with the project's labelling configuration (Settings,"
        " Labeling Interface, Code), which tells what its texts are called",
    )
    offsets: Literal["utf16", "code_points", "graphemes"] | None = Field(
        default=None, description="doccano: what its page counts; null: utf16, its default"
    )
    confirmed: bool | None = Field(
        default=None,
        description="brat, doccano, spacy, uima: somebody judged every row or document, so one"
        " without a label or span is `no error`",
    )
    annotator: str | None = Field(
        default=None, description="brat, doccano, spacy, uima: who made the labels of this file"
    )
    layer: str | None = Field(
        default=None, description="uima: the only type of annotations to read; null: all"
    )
    corrections: bool | None = Field(
        default=None,
        description="doccano: labels that are texts are better versions, as in Seq2seq projects",
    )


class ExportSettings(StrictModel):
    to: str = Field(
        description="a format: "
        + ", ".join(EXPORTERS)
        + "; or a task whose feedback rows are written"
    )
    annotators: int | str = Field(
        default=MAJORITY,
        description="with to=spans or a task, if several annotators judged a response: majority"
        " (what more than half of them marked), any (every mark), the least number of votes, or the"
        " name of one annotator (if it is a number, in quotes twice: '\"7\"')",
    )
    limit: Count | None = Field(default=None, description="only the first rows; null: all")
    names: bool | None = Field(
        default=None,
        description="label_studio: write the annotators' names (default); it refuses users whom"
        " it does not know",
    )
    project: str | None = Field(
        default=None,
        description="label_studio: a file with the project's labelling configuration (Settings,"
        " Labeling Interface, Code), which the tasks are then fitted to",
    )
    offsets: Literal["utf16", "code_points"] | None = Field(
        default=None, description="doccano: what its page counts; null: utf16, its default"
    )
    conversations: bool | None = Field(
        default=None, description=f"trl_preference: {CONVERSATIONS_HELP}"
    )
    dev: FilePath | None = Field(
        default=None,
        description="spans, trl_preference: a second file for some of the prompts, with all rows of"
        " each; rows of one `cluster`, or without a prompt of one source, stay together too",
    )
    dev_share: float = Field(
        default=0.1, gt=0, lt=1, description="of the prompts, clusters or sources: those of `dev`"
    )

    @model_validator(mode="after")
    def _rows_are_for_training(self):
        if "dev_share" in self.model_fields_set and self.dev is None:
            refuse([("dev_share", "is of the file `dev`: give dev=FILE too")])
        if self.dev is not None and self.to not in TRAINING_FORMATS:
            refuse([("dev", f"is for to={' and '.join(TRAINING_FORMATS)}: leave it out")])
        return self

    @model_validator(mode="after")
    def _annotators_are_combined(self):
        others = [name for name in EXPORTERS if name != SPANS.name]
        if "annotators" in self.model_fields_set and self.to in others:
            refuse([("annotators", "is for to=spans and tasks: leave it out")])
        if isinstance(self.annotators, int) and self.annotators < 1:
            refuse([("annotators", f"must be at least 1 vote, it is {self.annotators}")])
        return self


def import_file(source: str, out: str, settings: ImportSettings) -> None:
    """Read a published file, write its judgements or comparisons, and report what was lost.

    The report is printed and written to OUT.import.json.
    """
    check_input_and_output(source, out)
    if settings.items is not None:
        check_not_input(settings.items, out)
    name = settings.source
    report_file = f"{out}.import.json"
    if name in IMPORTERS:
        for other in IMPORTERS[name].beside:
            check_not_input(str(Path(source).parent / other), out)
        items, report = import_items(source, name, _given(settings, "source"))
        row_format = IMPORTERS[name].format
        counts = report.as_json()
    else:  # the feedback rows of a task: nothing is lost
        check_keys(name, (), _given(settings, "source"))
        items = _feedback_format(name, IMPORTERS).read(source)
        report = None
        row_format = JUDGEMENTS
        counts = {"rows": len(items)}
    write_rows(out, [row_format.to_row(item) for item in items])
    files = {"source": source, "from": name, "out": out, "written": len(items)}
    write_json(report_file, files | counts)
    print(f"{out}: {counted(len(items), 'row')} of {row_format.name}, from {name}")
    if report is not None:
        _print_report(report, report_file)


def _given(settings: StrictModel, *common: str) -> dict[str, Any]:
    """The keys of one format that the command was given: all except the `common` ones."""
    values = settings.model_dump(exclude_none=True)
    return {key: value for key, value in values.items() if key not in common}


def _print_report(report: Report, report_file: str) -> None:
    for line in report.lines():
        print(f"  {line}")
    problems = [str(problem) for problem in report.problems]
    if problems:
        print(f"  dropped: {len(problems):,}, all in {report_file}")
    for problem in first_problems(problems):
        print(f"    {problem}")


def export_file(source: str, out: str, settings: ExportSettings) -> None:
    """Write judgements or comparisons in another format, and print what it cannot hold."""
    for file in (out, settings.dev):
        if file is not None:
            check_input_and_output(source, file)
            if settings.project is not None:
                check_not_input(settings.project, file)
    if settings.dev is not None:
        check_two_outputs(out, settings.dev)
    counts: Counter[str] = Counter()
    is_format = settings.to in EXPORTERS  # otherwise it is a task
    if is_format:
        exporter = EXPORTERS[settings.to]
        items: list[Any]
        if exporter.format is JUDGEMENTS:
            items = read_judgements(source, settings.limit)
        else:
            items = exporter.format.read(source, limit=settings.limit)
        keys = _given(settings, *COMMON)
        check_keys(settings.to, exporter.keys, keys)
        if settings.to == SPANS.name:
            items, counts = combined(items, settings.annotators)
        if exporter.format is COMPARISONS:
            rows, losses = preference_rows(
                source, items, settings.conversations, {}, settings.limit
            )
        else:
            rows, losses = exporter.write(items, **keys)
    else:
        check_keys(settings.to, (), _given(settings, *COMMON))
        rows, losses, counts = _as_feedback(source, settings)
    dev_rows: list[Any] = []
    if settings.dev is not None:
        rows, dev_rows = split_units(rows, settings.dev_share)
        write_rows(settings.dev, dev_rows)
    if out.endswith(".json") and not is_format:
        # byte for byte as the published feedback files
        write_text(out, json.dumps(rows, indent=2))
    else:
        write_rows(out, rows)
    print(f"{out}: {counted(len(rows), 'row')} of {settings.to}")
    if settings.dev is not None:
        print(f"{settings.dev}: {counted(len(dev_rows), 'row')} of {settings.to}")
    print_counts(+counts)
    for what, count in losses.most_common():
        print(f"  lost, {what}: {count:,}")


def read_judgements(source: str, limit: int | None = None) -> list[JudgedResponse]:
    """Read rows of judgements.

    Raises:
      UserError: the file has other rows. If they are rows of spans, the message says how to convert
        them.
    """
    try:
        return JUDGEMENTS.read(source, limit=limit)
    except UserError:
        if not fits_format("spans", read_rows(source)):
            raise
    raise UserError(
        f"{shorten(source)} has rows of spans, not judgements. Convert it first:"
        " `fgrlhf data convert IN OUT format=spans to=judgements`"
    )


# ---- feedback rows of a task ---------------------------------------------------------------------


def _as_feedback(source: str, settings: ExportSettings) -> tuple[list[Any], Losses, Counter[str]]:
    """Judgements as feedback rows of a task, what these cannot hold, and what was combined."""
    feedback_rows = _feedback_rows(settings.to, EXPORTERS)
    rows = []
    losses = Losses()
    items, counts = combined(read_judgements(source, settings.limit), settings.annotators)
    for item in items:
        row, lost = feedback_rows.to_row(item)
        rows.append(row)
        losses += lost
    return rows, losses, counts


def _feedback_format(name: str, known: Mapping[str, Any]) -> Format[JudgedResponse]:
    """The feedback rows of a task as a row format."""
    rows = _feedback_rows(name, known)

    def row_of(judged: JudgedResponse) -> dict[str, Any]:
        return rows.to_row(judged)[0]

    return Format(f"feedback of {name}", (), rows.parse, row_of)


def _feedback_rows(name: str, known: Mapping[str, Any]) -> FeedbackRows:
    """How the feedback rows of a task become judgements, and the other way round.

    Args:
      name: of the task.
      known: the formats that the command has, for the message if `name` is neither.
    """
    try:
        task = load_task(name)
    except UserError:
        if name in NO_IMPORT and known is IMPORTERS:
            raise UserError(f"{name} {NO_IMPORT[name]}") from None
        raise UserError(
            f"`{shorten(name)}` is neither a format nor a task; {suggestion(name, [*known])}"
        ) from None
    return task.judgements or span_rows.ROWS
