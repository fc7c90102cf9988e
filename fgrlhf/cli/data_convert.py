"""`fgrlhf data convert`: read rows in a format, and write them with other keys."""

from typing import Any, Literal

from pydantic import Field, model_validator

from fgrlhf.cli.data_inspect import FormatSettings
from fgrlhf.config import refuse
from fgrlhf.data import span_rows
from fgrlhf.data.comparisons import Comparison, as_pairs, join_pairs
from fgrlhf.data.format import Format
from fgrlhf.data.formats import FORMATS, SPANS, pair_row
from fgrlhf.data.judgements import JUDGEMENTS
from fgrlhf.data.problems import counted
from fgrlhf.data.read import check_input_and_output, write_rows
from fgrlhf.data.step_rows import STEP_ROWS
from fgrlhf.errors import UserError, shorten, suggestion

# format -> what `convert` can write besides rows with the format's own keys
TARGETS = {
    "comparisons": ("pairs", "joined"),
    "steps": ("trl", "math_shepherd", "prm800k"),
    "spans": ("judgements",),
}

# rows of spans, read as judgements
SPAN_JUDGEMENTS = Format(SPANS.name, SPANS.names, span_rows.parse_spans, JUDGEMENTS.to_row)


class ConvertSettings(FormatSettings):
    to: Literal["rows", "pairs", "joined", "trl", "math_shepherd", "prm800k", "judgements"] = Field(
        default="rows",
        description=(
            "rows: as they are; of comparisons also pairs: {prompt, chosen, rejected} for every"
            " decided pair; joined: one row for each prompt; of steps also the formats trl,"
            " math_shepherd and prm800k; of spans also judgements"
        ),
    )
    error_at_most: float = Field(
        default=0.0, description="of steps: the highest score of a bad step"
    )
    task: str | None = Field(
        default=None, description="of comparisons: the task that reads the file"
    )
    source: str | None = Field(
        default=None,
        description="name in `Task.comparisons`; null: the file is a pair file of the task",
    )
    prompts: str | None = Field(
        default=None, description="file of the prompts that `source` refers to"
    )

    @model_validator(mode="after")
    def _settings_fit_together(self):
        formats = [name for name, targets in TARGETS.items() if self.to in targets]
        if self.to != "rows" and self.format not in formats:
            known = ", ".join(("rows", *TARGETS.get(self.format, ())))
            reason = f"is for format={formats[0]}; known for format={self.format}: {known}"
            refuse([("to", f"`{self.to}` {reason}")])
        if self.task is not None and self.format != "comparisons":
            refuse([("task", "is for format=comparisons: leave it out")])
        if "error_at_most" in self.model_fields_set and self.to not in TARGETS["steps"]:
            refuse([("error_at_most", f"is for to={', '.join(TARGETS['steps'])}: leave it out")])
        if (self.source is None) != (self.prompts is None):
            refuse([("source", "and `prompts` need each other: give both, or neither")])
        if self.source is not None and self.task is None:
            refuse([("source", "is a source of a task: give task=... too")])
        if self.task is not None and self.columns:
            refuse([("columns", "are not read by a task: leave them out")])
        return self


def convert(source: str, out: str, settings: ConvertSettings) -> None:
    """Read rows in a format and write them in the form that `settings.to` names."""
    check_input_and_output(source, out)
    row_format: Format[Any] = (
        SPAN_JUDGEMENTS if settings.to == "judgements" else FORMATS[settings.format]
    )
    items: list[Any]
    if settings.task is None:
        items = row_format.read(source, settings.columns, settings.limit)
    else:
        items = _read_by_task(source, settings)

    if settings.to == "pairs":
        rows = [pair_row(pair) for pair in as_pairs(items)]
    elif settings.to == "joined":
        rows = [row_format.to_row(item) for item in join_pairs(items)]
    elif settings.to in STEP_ROWS:
        write = STEP_ROWS[settings.to]
        rows = [write(item, settings.error_at_most) for item in items]
    else:
        rows = [row_format.to_row(item) for item in items]

    write_rows(out, rows)
    written = "judgements" if settings.to == "judgements" else settings.format
    print(f"{out}: {counted(len(rows), 'row')} of {written}")


def _read_by_task(file: str, settings: ConvertSettings) -> list[Comparison]:
    """The comparisons in a pair file of the task, or those that one of its sources finds."""
    from fgrlhf.task import load_task  # takes seconds, and other files do not need it

    task = load_task(str(settings.task))
    source = settings.source
    if source is None:
        if task.rm_pairs is None:
            raise UserError(
                f"pair files of the task {task.name} have no format of their own: leave task=..."
                " out, or give source=... and prompts=... to read feedback"
            )
        return task.rm_pairs(file)[: settings.limit]
    if source not in task.comparisons:
        raise UserError(
            f"`{shorten(source)}` is not a source of comparisons of the task {task.name};"
            f" {suggestion(source, [*task.comparisons])}"
        )
    prompts = task.read(str(settings.prompts))
    return task.comparisons[source](file, prompts)[: settings.limit]
