"""Show, check, explore and convert rows of training data, and fetch a small pretrained model.

    fgrlhf data show FILE                            print keys, first rows and matching formats
    fgrlhf data check FILE format=comparisons        check every row and print statistics
    fgrlhf data convert IN OUT format=comparisons    write rows with the format's own keys
    fgrlhf data convert IN OUT format=comparisons to=pairs    write {prompt, chosen, rejected}
    fgrlhf data convert IN OUT format=steps to=trl   write {prompt, completions, labels}
    fgrlhf data convert IN OUT format=spans to=judgements    write spans as judgements
    fgrlhf data explore FILE                         a page about comparisons: lengths, bias, ...
    fgrlhf data filter IN OUT drop=[blank]           write comparisons without some of the pairs
    fgrlhf data import IN OUT from=mqm               read a published format as judgements
    fgrlhf data export IN OUT to=label_studio        write judgements for another tool
    fgrlhf data agreement FILE [FILE ...]            agreement of the annotators of judgements
    fgrlhf data model smollm2                        fetch a language model of 135 M parameters

FILE and IN are .json, .jsonl or .parquet files or hub:org/name; OUT is such a file
(fgrlhf/data/read.py). The formats are those of fgrlhf/data/formats.py. The models are those of
fgrlhf/data/model.py.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fgrlhf.cli.command_line import settings_from
from fgrlhf.cli.key_help import describe
from fgrlhf.config import Count, StrictModel, refuse
from fgrlhf.data import span_rows
from fgrlhf.data.checks import type_name
from fgrlhf.data.comparisons import Comparison, as_pairs, join_pairs
from fgrlhf.data.exporters import EXPORTERS
from fgrlhf.data.format import Format
from fgrlhf.data.formats import (
    COMPARISONS,
    DEMONSTRATIONS,
    FORMATS,
    PROMPTS,
    SPANS,
    STEPS,
    Demonstration,
    SpanFeedback,
    StepFeedback,
    pair_row,
)
from fgrlhf.data.importers.registry import IMPORTERS, import_items
from fgrlhf.data.judgements import JUDGEMENTS, SOURCE, FeedbackRows, JudgedResponse, Losses
from fgrlhf.data.problems import counted
from fgrlhf.data.read import check_output, read_rows, write_rows
from fgrlhf.data.rows import Row, RowError
from fgrlhf.data.step_rows import STEP_ROWS
from fgrlhf.errors import UserError, first_problems, run_main, shorten, suggestion
from fgrlhf.files import write_json, write_text
from fgrlhf.text_types import Prompt

FormatName = Literal["prompts", "demonstrations", "comparisons", "spans", "steps", "judgements"]

# format -> what `convert` can write besides rows with the format's own keys
TARGETS = {
    "comparisons": ("pairs", "joined"),
    "steps": ("trl", "math_shepherd", "prm800k"),
    "spans": ("judgements",),
}

FilterName = Literal["blank", "identical", "contradicted", "close", "duplicates"]

ROWS_TRIED = 100  # rows used to find out which formats a file matches
MOST_SHOWN = 400  # characters shown of a row
MOST_LABELS = 10


class FormatSettings(StrictModel):
    format: FormatName = Field(description="format of the rows")
    columns: dict[str, str | list[str]] = Field(
        default={},
        description="the format's keys -> the file's, e.g. columns={prompt: instruction}",
    )
    limit: Count | None = Field(default=None, description="only the first rows; null: all")


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
            refuse([("to", f"`{self.to}` is for format={formats[0]}: choose another one")])
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


class ComparisonSettings(StrictModel):
    columns: dict[str, str | list[str]] = Field(
        default={}, description="keys of a comparison -> the file's"
    )
    limit: Count | None = Field(default=None, description="only the first rows; null: all")


class ExploreSettings(ComparisonSettings):
    out: str = Field(default="explore.html", description="the page")


class FilterSettings(ComparisonSettings):
    drop: list[FilterName] = Field(min_length=1, description="filters, applied in this order")


class ImportSettings(StrictModel):
    source: str = Field(
        alias="from",
        description="a published format: "
        + ", ".join(IMPORTERS)
        + "; or a task whose feedback rows are read",
    )


class ExportSettings(StrictModel):
    to: str = Field(
        description="a format: "
        + ", ".join(EXPORTERS)
        + "; or a task whose feedback rows are written"
    )
    limit: Count | None = Field(default=None, description="only the first rows; null: all")


class AgreementSettings(StrictModel):
    severities: list[str] = Field(
        default=[],
        description="severities from the mildest to the worst, to compare them; []: not compared",
    )
    out: str | None = Field(default=None, description="a JSON file to write the figures to")


class ShowSettings(StrictModel):
    rows: Count = Field(default=3, description="number of rows to print")


class ModelSettings(StrictModel):
    output_dir: str | None = Field(
        default=None, description="folder of the model; null: outputs/models/NAME"
    )


# ---- show ----------------------------------------------------------------------------------------


def show(source: str, settings: ShowSettings) -> None:
    """Print the keys of a file with their types, the matching formats, and the first rows."""
    rows = read_rows(source)
    print(f"{source}: {counted(len(rows), 'row')}")
    for key, types in _types_by_key(rows).items():
        counts = ", ".join(f"{name} {count:,}" for name, count in types.most_common())
        print(f"  {shorten(key, 60)}: {counts}")
    fits = [name for name in FORMATS if _fits(name, rows[:ROWS_TRIED])]
    print(f"formats: {', '.join(fits) or 'none without columns={...}'}")
    for number, row in enumerate(rows[: settings.rows]):
        print(f"row {number}: {shorten(json.dumps(row, ensure_ascii=False), MOST_SHOWN)}")


def _types_by_key(rows: Sequence[Any]) -> dict[str, Counter[str]]:
    """How often each key has a value of each type."""
    types: dict[str, Counter[str]] = {}
    for row in rows:
        for key, value in row.items() if isinstance(row, Mapping) else [("(no object)", row)]:
            types.setdefault(key, Counter())[type_name(value)] += 1
    return types


def _fits(name: str, rows: Sequence[Any]) -> bool:
    try:
        for number, values in enumerate(rows):
            if not isinstance(values, Mapping):
                return False
            FORMATS[name].parse(Row(values, {}), number)
    except RowError:
        return False
    return True


# ---- check ---------------------------------------------------------------------------------------


def check(source: str, settings: FormatSettings) -> None:
    """Read every row in a format and print statistics."""
    items = FORMATS[settings.format].read(source, settings.columns, settings.limit)
    print(f"{source}: {counted(len(items), 'row')} of {settings.format}, all well formed")
    for line in _SUMMARIES[settings.format](items):
        print(f"  {line}")


def _about_prompts(prompts: Sequence[Prompt]) -> list[str]:
    lines = [f"different prompts: {len({prompt.text for prompt in prompts}):,}"]
    with_references = sum(bool(prompt.references) for prompt in prompts)
    if with_references:
        lines.append(f"with references: {with_references:,}")
    return lines


def _about_demonstrations(demonstrations: Sequence[Demonstration]) -> list[str]:
    words = [len(demonstration.response.split()) for demonstration in demonstrations]
    return [
        *_about_prompts([demonstration.prompt for demonstration in demonstrations]),
        f"mean words of a response: {sum(words) / len(words):.1f}",
    ]


def _about_comparisons(comparisons: Sequence[Comparison]) -> list[str]:
    sizes = Counter(len(comparison.answers) for comparison in comparisons)
    pairs = [pair for comparison in comparisons for pair in comparison.pairs]
    lines = _about_prompts([comparison.prompt for comparison in comparisons])
    for size, count in sorted(sizes.items()):
        lines.append(f"with {size} responses: {count:,}")
    lines.append(f"decided pairs: {len(pairs):,}")
    undecided = sum(not comparison.pairs for comparison in comparisons)
    if undecided:
        lines.append(f"without a decided pair, so training leaves them out: {undecided:,}")
    # In rows {chosen, rejected} the better response is always first. In other rows, the share shows
    # a position bias of the annotators.
    first_is_better = sum(better < worse for better, worse in pairs)
    if pairs and first_is_better < len(pairs):
        share = first_is_better / len(pairs)
        lines.append(f"pairs whose first-listed response is better: {share:.1%}")
    blank = 0
    for comparison in comparisons:
        for better, _ in comparison.pairs:
            if not comparison.answers[better].text.strip():
                blank += 1
    if blank:
        lines.append(
            f"pairs whose better response is blank: {blank:,} (a policy would learn to write"
            " nothing; remove these rows if that is not intended)"
        )
    return lines


def _about_spans(feedback: Sequence[SpanFeedback]) -> list[str]:
    labels = Counter(span.label for item in feedback for span in item.spans)
    without = sum(not item.spans for item in feedback)
    lines = [f"spans: {labels.total():,}", f"responses without a span: {without:,}"]
    return [*lines, *_counted_labels(labels)]


def _about_steps(feedback: Sequence[StepFeedback]) -> list[str]:
    steps = [step for item in feedback for step in item.steps]
    lines = [*_about_prompts([item.prompt for item in feedback]), f"steps: {len(steps):,}"]
    scores = [step.score for step in steps if step.score is not None]
    if scores:
        mean = sum(scores) / len(scores)
        lines.append(
            f"with a score: {len(scores):,} ({min(scores):g} to {max(scores):g}, mean {mean:.3f})"
        )
    return [*lines, *_counted_labels(Counter(step.label for step in steps if step.label))]


def _about_judgements(judged: Sequence[JudgedResponse]) -> list[str]:
    judgements = [judgement for item in judged for judgement in item.judgements]
    without = sum(not item.judgements for item in judged)
    lines = [f"judgements: {len(judgements):,}", f"responses without a judgement: {without:,}"]
    spans = sum(judgement.span is not None for judgement in judgements)
    lines.append(f"with a span: {spans:,}")
    of_source = sum(judgement.side == SOURCE for judgement in judgements)
    if of_source:
        lines.append(f"of the source: {of_source:,}")
    for part in ("aspect", "severity", "annotator"):
        values = {getattr(judgement, part) for judgement in judgements} - {None}
        if values:
            lines.append(f"different values of {part}: {len(values):,}")
    return [*lines, *_counted_labels(Counter(item.label for item in judgements if item.label))]


def _counted_labels(labels: Counter[str]) -> list[str]:
    lines = [
        f"with label {shorten(label, 60)}: {count:,}"
        for label, count in labels.most_common(MOST_LABELS)
    ]
    if len(labels) > MOST_LABELS:
        lines.append(f"other labels: {len(labels) - MOST_LABELS}")
    return lines


_SUMMARIES: dict[str, Callable[[Sequence[Any]], list[str]]] = {
    PROMPTS.name: _about_prompts,
    DEMONSTRATIONS.name: _about_demonstrations,
    COMPARISONS.name: _about_comparisons,
    SPANS.name: _about_spans,
    STEPS.name: _about_steps,
    JUDGEMENTS.name: _about_judgements,
}


# ---- convert -------------------------------------------------------------------------------------

# rows of spans, read as judgements
SPAN_JUDGEMENTS = Format(SPANS.name, SPANS.names, span_rows.parse_spans, JUDGEMENTS.to_row)


def convert(source: str, out: str, settings: ConvertSettings) -> None:
    """Read rows in a format and write them with the format's own keys, or as pairs."""
    _check_paths(source, out)
    row_format = FORMATS[settings.format]
    items: list[Any]
    if settings.to == "judgements":
        row_format = SPAN_JUDGEMENTS
    if settings.task is None:
        items = row_format.read(source, settings.columns, settings.limit)
    else:
        items = _read_by_task(source, settings)
    if settings.to == "joined":
        items = join_pairs(items)
    if settings.to == "pairs":
        rows = [pair_row(pair) for pair in as_pairs(items)]
    elif settings.to in STEP_ROWS:
        write = STEP_ROWS[settings.to]
        rows = [write(item, settings.error_at_most) for item in items]
    else:
        rows = [row_format.to_row(item) for item in items]
    write_rows(out, rows)
    written = "judgements" if settings.to == "judgements" else settings.format
    print(f"{out}: {counted(len(rows), 'row')} of {written}")


def _check_paths(source: str, out: str) -> None:
    """Raises `UserError` if the output cannot be written, or would replace the input."""
    if Path(source).resolve() == Path(out).resolve():
        raise UserError(f"{out} is the input, so it cannot be the output too: name another file")
    check_output(out)


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


# ---- explore -------------------------------------------------------------------------------------


def explore_comparisons(source: str, settings: ExploreSettings) -> None:
    """Write a page of statistics of comparisons, and print its warnings."""
    # they take seconds, and other actions do not need them
    from fgrlhf.data.explore import explore
    from fgrlhf.data.explore_page import page, warnings

    comparisons = COMPARISONS.read(source, settings.columns, settings.limit)
    if not any(comparison.pairs for comparison in comparisons):
        raise UserError(
            f"{source} has no decided pair in its {counted(len(comparisons), 'row')}, so there is"
            " nothing to explore: check its keys with `fgrlhf data show`"
        )
    exploration = explore(comparisons)
    print(f"{source}: {exploration.rows:,} rows, {exploration.pairs:,} decided pairs")
    for warning in warnings(exploration):
        print(f"  {warning}")
    write_text(settings.out, page(Path(source).name, exploration, comparisons))
    print(f"page: {settings.out}")


def filter_comparisons(source: str, out: str, settings: FilterSettings) -> None:
    """Write the comparisons without the pairs that the filters remove."""
    from fgrlhf.data.explore import drop_pairs

    _check_paths(source, out)
    comparisons = COMPARISONS.read(source, settings.columns, settings.limit)
    comparisons = drop_pairs(comparisons, settings.drop)
    write_rows(out, [COMPARISONS.to_row(comparison) for comparison in comparisons])
    print(f"{out}: {counted(len(comparisons), 'row')} of comparisons")


# ---- import and export ---------------------------------------------------------------------------


def import_file(source: str, out: str, settings: ImportSettings) -> None:
    """Read a published file, write its judgements or comparisons, and report what was lost.

    The report is printed and written to OUT.import.json.
    """
    _check_paths(source, out)
    name = settings.source
    if name in IMPORTERS:
        items, report = import_items(source, name)
        row_format = IMPORTERS[name].format
        found = report.as_json()
        lines = report.lines()
        problems = [str(problem) for problem in report.problems]
    else:
        items = _feedback_format(name, IMPORTERS).read(source)
        row_format = JUDGEMENTS
        found, lines, problems = {"rows": len(items)}, [], []
    write_rows(out, [row_format.to_row(item) for item in items])
    report_file = f"{out}.import.json"
    counts = {"source": source, "from": name, "out": out, "written": len(items)}
    write_json(report_file, counts | found)
    print(f"{out}: {counted(len(items), 'row')} of {row_format.name}, from {name}")
    for line in lines:
        print(f"  {line}")
    if problems:
        print(f"  dropped: {len(problems):,}, all in {report_file}")
    for problem in first_problems(problems):
        print(f"    {problem}")


def _feedback_format(name: str, known: Mapping[str, Any]) -> Format[JudgedResponse]:
    """The feedback rows of a task as a row format."""
    rows = _feedback_rows(name, known)

    def row_of(judged: JudgedResponse) -> dict[str, Any]:
        return rows.to_row(judged)[0]

    return Format(f"feedback of {name}", (), rows.parse, row_of)


def _feedback_rows(name: str, known: Mapping[str, Any]) -> FeedbackRows:
    from fgrlhf.task import load_task  # takes seconds, and other formats do not need it

    try:
        task = load_task(name)
    except UserError:
        raise UserError(
            f"`{shorten(name)}` is neither a format nor a task; {suggestion(name, [*known])}"
        ) from None
    return task.judgements or span_rows.ROWS


def export_file(source: str, out: str, settings: ExportSettings) -> None:
    """Write judgements or comparisons in another format, and print what it cannot hold."""
    _check_paths(source, out)
    if settings.to in EXPORTERS:
        exporter = EXPORTERS[settings.to]
        items = exporter.format.read(source, limit=settings.limit)
        rows, losses = exporter.write(items)
        write_rows(out, rows)
    else:
        feedback_rows = _feedback_rows(settings.to, EXPORTERS)
        rows = []
        losses = Losses()
        for item in JUDGEMENTS.read(source, limit=settings.limit):
            row, lost = feedback_rows.to_row(item)
            rows.append(row)
            losses += lost
        if out.endswith(".json"):  # byte for byte as the published feedback files
            write_text(out, json.dumps(rows, indent=2))
        else:
            write_rows(out, rows)
    print(f"{out}: {counted(len(rows), 'row')} of {settings.to}")
    for what, count in losses.most_common():
        print(f"  lost, {what}: {count:,}")


# ---- agreement -----------------------------------------------------------------------------------


def agreement(files: Sequence[str], settings: AgreementSettings) -> None:
    """Print how far annotators agree. Several files are the judgements of one annotator each."""
    from fgrlhf.data.agreement import report

    judged = {file: JUDGEMENTS.read(file) for file in files}
    figures = report(judged, settings.severities)
    for name, figure in figures.items():
        print(f"{name:<44} {figure}")
    if settings.out:
        values = {}
        for name, figure in figures.items():
            values[name] = figure if isinstance(figure, str) else figure.as_dict()
        write_json(settings.out, values)


# ---- model ---------------------------------------------------------------------------------------


def fetch(name: str, settings: ModelSettings) -> None:
    """Fetch a pretrained model, or reuse the folder that has it."""
    from fgrlhf.data.model import MODELS, fetch_model  # takes seconds, and the rows do not need it

    if name not in MODELS:
        raise UserError(
            f"`{shorten(name)}` is not a model of fgrlhf data model; {suggestion(name, [*MODELS])}."
            " A stage reads any other model by its hub name or folder"
        )
    model = MODELS[name]
    fetch_model(model, settings.output_dir or model.default_folder)


# ---- the command ---------------------------------------------------------------------------------

USAGE = """usage: fgrlhf data show FILE [rows=3]
       fgrlhf data check FILE format=... [columns=...] [limit=...]
       fgrlhf data convert IN OUT format=... [columns=...] [limit=...] [to=...]
       fgrlhf data convert IN OUT format=comparisons task=... [source=... prompts=...] [to=...]
       fgrlhf data explore FILE [out=explore.html] [columns=...] [limit=...]
       fgrlhf data filter IN OUT drop=[...] [columns=...] [limit=...]
       fgrlhf data import IN OUT from=...
       fgrlhf data export IN OUT to=... [limit=...]
       fgrlhf data agreement FILE [FILE ...] [severities=[...]] [out=...]
       fgrlhf data model NAME [output_dir=...]"""
# action -> names of its arguments
ACTIONS = {
    "show": ["FILE"],
    "check": ["FILE"],
    "convert": ["IN", "OUT"],
    "explore": ["FILE"],
    "filter": ["IN", "OUT"],
    "import": ["IN", "OUT"],
    "export": ["IN", "OUT"],
    "agreement": ["FILE"],
    "model": ["NAME"],
}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: an action, its files, and key=value settings."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        keys = [
            *(ShowSettings, ConvertSettings, ExploreSettings, FilterSettings, ImportSettings),
            *(ExportSettings, AgreementSettings, ModelSettings),
        ]
        lines = [line for settings in keys for line in describe(settings)]
        print("\n".join([USAGE, "keys:", *lines]))
        sys.exit(0 if arguments else 2)
    action, *rest = arguments
    if action not in ACTIONS:
        known = [*ACTIONS]
        raise UserError(
            f"`{shorten(action)}` is not an action of fgrlhf data; {suggestion(action, known)}"
        )
    names = ACTIONS[action]
    given, settings = rest[: len(names)], rest[len(names) :]
    if len(given) < len(names) or any("=" in text and not Path(text).exists() for text in given):
        raise UserError(f"fgrlhf data {action} needs {' and '.join(names)}.\n{USAGE}")
    if action == "show":
        show(given[0], settings_from(ShowSettings, settings))
    elif action == "check":
        check(given[0], settings_from(FormatSettings, settings))
    elif action == "convert":
        convert(given[0], given[1], settings_from(ConvertSettings, settings))
    elif action == "explore":
        explore_comparisons(given[0], settings_from(ExploreSettings, settings))
    elif action == "filter":
        filter_comparisons(given[0], given[1], settings_from(FilterSettings, settings))
    elif action == "import":
        import_file(given[0], given[1], settings_from(ImportSettings, settings))
    elif action == "export":
        export_file(given[0], given[1], settings_from(ExportSettings, settings))
    elif action == "agreement":
        files = [text for text in settings if "=" not in text or Path(text).exists()]
        rest = [text for text in settings if text not in files]
        agreement([*given, *files], settings_from(AgreementSettings, rest))
    else:
        fetch(given[0], settings_from(ModelSettings, settings))


if __name__ == "__main__":
    run_main(main)
