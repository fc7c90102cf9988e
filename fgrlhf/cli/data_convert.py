"""`fgrlhf data convert`: read rows in a format, and write them with other keys."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from fgrlhf.base.errors import UserError, counted, shorten, suggestion
from fgrlhf.cli.data_inspect import FormatSettings, print_counts
from fgrlhf.configs.strict import refuse
from fgrlhf.data import span_rows
from fgrlhf.data.comparisons import Comparison, as_pairs, edits, join_pairs
from fgrlhf.data.exporters import Rows, texts_or_conversations, trl_preference_rows
from fgrlhf.data.format import CONVERSATIONS, Format
from fgrlhf.data.formats import COMPARISONS, FORMATS, SPANS
from fgrlhf.data.judgements import JUDGEMENTS, Losses
from fgrlhf.data.read import check_input_and_output, check_not_input, read_rows, write_rows
from fgrlhf.data.rows import Columns, Row, key_list
from fgrlhf.data.step_rows import STEP_ROWS, step_rows
from fgrlhf.data.unpaired_rows import (
    UNPAIRED,
    comparisons_of_unpaired,
    spans_of_unpaired,
    unpaired_of_comparisons,
    unpaired_of_spans,
)
from fgrlhf.load import load_task
from fgrlhf.text_types import Prompt

# format -> what `convert` can write besides rows with the format's own keys
TARGETS = {
    "comparisons": ("pairs", "joined", "edits", "unpaired"),
    "unpaired": ("pairs", "joined", "spans"),
    "steps": ("trl", "math_shepherd", "prm800k"),
    "spans": ("judgements", "unpaired", "pairs", "joined"),
}

CONVERSATIONS_HELP = (
    "whether prompts and responses are lists of messages, which TRL puts into the chat template;"
    " null: if the prompt or a response of a row is such a list"
)

TEXTS = ("prompt", CONVERSATIONS, "chosen", "rejected", "completion", "response")

# rows of spans, read as judgements
SPAN_JUDGEMENTS = Format(
    SPANS.name, SPANS.names, span_rows.parse_spans, JUDGEMENTS.to_row, SPANS.split
)


class ConvertSettings(FormatSettings):
    to: Literal[
        "rows",
        "pairs",
        "joined",
        "edits",
        "unpaired",
        "spans",
        "trl",
        "math_shepherd",
        "prm800k",
        "judgements",
    ] = Field(
        default="rows",
        description=(
            "rows: as they are; of comparisons, unpaired and spans also pairs ({prompt, chosen,"
            " rejected} for every decided pair) and joined (one comparison for each prompt); of"
            " comparisons and spans unpaired; of unpaired spans; of comparisons edits (a pair for"
            " each edit between two responses); of steps trl, math_shepherd and prm800k; of spans"
            " judgements"
        ),
    )
    error_at_most: float = Field(
        default=0.0, description="of steps: the highest score of a bad step"
    )
    conversations: bool | None = Field(
        default=None,
        description=(f"to=pairs and to=unpaired: {CONVERSATIONS_HELP}"),
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
        if self.conversations is not None and self.to not in ("pairs", "unpaired"):
            refuse([("conversations", "is for to=pairs and to=unpaired: leave it out")])
        if (self.source is None) != (self.prompts is None):
            refuse([("source", "and `prompts` need each other: give both, or neither")])
        if self.source is not None and self.task is None:
            refuse([("source", "is a source of a task: give task=... too")])
        if self.task is not None and self.columns:
            refuse([("columns", "are not read by a task: leave them out")])
        if self.task is not None and "offsets" in self.model_fields_set:
            refuse([("offsets", "are not read by a task: leave them out")])
        return self


def convert(source: str, out: str, settings: ConvertSettings) -> None:
    """Read rows in a format, write them in the form that `settings.to` names, and print losses."""
    check_input_and_output(source, out)
    if settings.prompts is not None:
        check_not_input(settings.prompts, out)
    row_format: Format[Any] = (
        SPAN_JUDGEMENTS if settings.to == "judgements" else FORMATS[settings.format]
    )
    items: list[Any]
    counts: Counter[str] = Counter()
    if settings.task is None:
        items = settings.read(row_format, source, counts)
    else:
        items = _read_by_task(source, settings)

    rows, losses, written = _converted(source, items, row_format, settings)
    losses += _replaced(source, settings)

    write_rows(out, rows)
    print(f"{out}: {counted(len(rows), 'row')} of {written}")
    print_counts(counts)
    for what, count in losses.most_common():
        print(f"  lost, {what}: {count:,}")
    if settings.task is None:
        for line in settings.notes(source):
            print(f"  {line}")


def _converted(
    source: str, items: list[Any], row_format: Format[Any], settings: ConvertSettings
) -> tuple[list[dict[str, Any]], Losses, str]:
    """The rows of items in the form `settings.to`, what these lose, and the format of the rows."""
    to = settings.to
    losses = Losses()
    if to in STEP_ROWS:
        rows, losses = step_rows(items, to, settings.error_at_most)
        return rows, losses, settings.format
    if to in ("pairs", "joined", "spans") and settings.format != COMPARISONS.name:
        if settings.format == SPANS.name:
            items, losses = unpaired_of_spans(items)
        if to == "spans":
            responses, lost = spans_of_unpaired(items)
            return [SPANS.to_row(response) for response in responses], losses + lost, SPANS.name
        items, lost = comparisons_of_unpaired(items)
        losses += lost
    wanted = settings.conversations
    if wanted is None and settings.task is not None:  # of a file in the task's own format
        wanted = False
    if to == "pairs":
        rows, lost = preference_rows(source, items, wanted, settings.columns, settings.limit)
        return rows, losses + lost, COMPARISONS.name
    if to == "joined":
        losses += _lost_by_joining(items)
        joined = join_pairs(items)
        return [COMPARISONS.to_row(item) for item in joined], losses, COMPARISONS.name
    if to == "edits":
        edited = [pair for item in as_pairs(items) for pair in edits(item)]
        losses["margins"] += sum(len(item.margins) for item in items)
        return [COMPARISONS.to_row(pair) for pair in edited], +losses, COMPARISONS.name
    if to == "unpaired":
        is_pairs = settings.format == COMPARISONS.name
        items, losses = (unpaired_of_comparisons if is_pairs else unpaired_of_spans)(items)
        rows = [UNPAIRED.to_row(item) for item in items]
        are_messages = _are_conversations(source, wanted, settings.columns, settings.limit)
        _check_texts(source, wanted, rows)
        return texts_or_conversations(rows, items, are_messages), losses, UNPAIRED.name
    rows = [row_format.to_row(item) for item in items]
    return rows, losses, JUDGEMENTS.name if to == "judgements" else settings.format


def preference_rows(
    source: str,
    items: Sequence[Comparison],
    conversations: bool | None,
    columns: Columns,
    limit: int | None,
) -> Rows:
    """Decided pairs in TRL's format, as conversations if the file they come from has some.

    Args:
      source: the file, with `columns` and `limit` as it was read.
      conversations: whether rows are conversations; None: if the file has some.

    Raises:
      UserError: they are not wanted, and a text would lose messages.
    """
    are_messages = _are_conversations(source, conversations, columns, limit)
    rows, losses = trl_preference_rows(items, are_messages)
    _check_texts(source, conversations, rows)
    return rows, losses


def _check_texts(source: str, wanted: bool | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise `UserError` if conversations are not wanted, and a text would lose messages."""
    if wanted is False and any(type(row["prompt"]) is list for row in rows):
        raise UserError(
            f"conversations is false, but the text of a prompt in {shorten(source)} would lose"
            " its messages (two of one speaker in a row, for example): leave conversations out"
        )


def _are_conversations(
    source: str, wanted: bool | None, columns: Columns, limit: int | None
) -> bool:
    """What is wanted; if that is not said, whether a prompt or a response is made of messages."""
    if wanted is not None:
        return wanted
    for values in read_rows(source)[:limit]:
        row = Row(values, columns)
        texts = [row.get(name) for name in TEXTS if name in row.values or name in columns]
        responses = row.get("responses")
        if isinstance(responses, list):
            texts += responses
        if any(isinstance(text, list | Mapping) for text in texts):
            return True
    return False


def _lost_by_joining(items: Sequence[Comparison]) -> Losses:
    """Joined rows have the references and other keys of the first row with their prompt."""
    losses = Losses()
    first: dict[str, Prompt] = {}
    for item in items:
        prompt = first.setdefault(item.prompt.text, item.prompt)
        losses["references of joined rows"] += item.prompt.references != prompt.references
        losses["other keys of joined rows"] += item.prompt.meta != prompt.meta
    return +losses


def _replaced(source: str, settings: ConvertSettings) -> Losses:
    """What rows have under a name of the format, if `columns` takes that value from another key."""
    losses = Losses()
    read = {key for path in settings.columns.values() for key in key_list(path)}
    parts_of = {}  # name -> the parts of the rows' own value that are read, such as `prompt.text`
    for name in settings.columns:
        if name not in read:
            inside = [key.removeprefix(f"{name}.") for key in read if key.startswith(f"{name}.")]
            parts_of[name] = {key.partition(".")[0] for key in inside}
    if not parts_of:
        return losses
    for values in read_rows(source)[: settings.limit]:
        for name, parts in parts_of.items():
            value = values.get(name)
            if value is not None and not parts:
                losses[f"the rows' own `{name}`"] += 1
            elif _inner_keys(value) - parts:
                losses[f"the rest of the rows' own `{name}`"] += 1
    return losses


def _inner_keys(value: Any) -> set[str]:
    """The keys of an object, or of all objects in a list."""
    if isinstance(value, list):
        return {key for item in value for key in _inner_keys(item)}
    return set(value) if isinstance(value, Mapping) else set()


def _read_by_task(file: str, settings: ConvertSettings) -> list[Comparison]:
    """The comparisons in a pair file of the task, or those that one of its sources finds."""
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
