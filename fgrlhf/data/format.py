"""A row format, and the parts that several row formats have in common."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Generic, NoReturn, TypeVar

from pydantic import BeforeValidator

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.records import (
    CORRECT,
    AnyText,
    LeftOutError,
    Record,
    RowError,
    Text,
    check_object,
    check_place,
    check_text,
    check_texts,
    check_whole,
    read,
    read_each,
    refuse_rows,
)
from fgrlhf.data.accepted import accepted
from fgrlhf.data.locate import CODE_POINTS, Reading
from fgrlhf.data.read import read_rows
from fgrlhf.data.rows import Columns, Row, check_columns, key_list, look_up
from fgrlhf.data.shapes import PromptText, conversation_prompt, messages_of, split_answer
from fgrlhf.data.stream import items_in, stored_rows
from fgrlhf.metrics.clusters import CLUSTER
from fgrlhf.models.dialogs import messages_in
from fgrlhf.text_types import ASSISTANT, SYSTEM, Message, Prompt

Item = TypeVar("Item")
Part = TypeVar("Part", bound=Record)
RESPONSE, SOURCE = "response", "source"
CONVERSATIONS = "conversations"  # ShareGPT's key of the messages of one conversation
SIDES = (RESPONSE, SOURCE)
PARTS = ("system", "instruction", "input")  # keys of texts that belong to a prompt in many files
JOIN = "join: columns.prompt='[KEY, KEY]'"


@dataclass(frozen=True)
class Format(Generic[Item]):
    """A row format.

    Args:
      names: the keys that `columns` may rename.
      parse: (row, its number) -> the item in it. Raises `RowError`.
      to_row: the inverse of `parse`.
      split: the rows in a row of a file, if it can hold several items.
    """

    name: str
    names: tuple[str, ...]
    parse: Callable[[Row, int], Item]
    to_row: Callable[[Item], dict[str, Any]]
    split: Callable[[Row], Sequence[Row]] = lambda row: (row,)

    def read(
        self,
        source: str | Path,
        columns: Columns | None = None,
        limit: int | None = None,
        counts: Counter[str] | None = None,
        reading: Reading = CODE_POINTS,
        separator: str | None = None,
    ) -> list[Item]:
        """The items of a file or data set, in order (fgrlhf/data/read.py).

        Args:
          columns: this format's names -> the file's keys, if they differ.
          limit: read only that many rows; the others are not checked.
          counts: receives what is noted about the rows, which the caller shows to the user: rows
            that are left out, and contradictions inside a row. None: a row that would be left out
            is an error.
          reading: how the rows count the offsets of spans.
          separator: what is between the steps of a text.

        Raises:
          UserError: the source cannot be read, rows are malformed, or all of them are left out.
            The message lists the first of them with number (from 0), key and reason.
        """
        columns = columns or {}
        check_columns(columns, (*self.names, CLUSTER), str(source))
        missing: set[str] = set()
        items_of = self._reader(columns, missing, counts, reading, separator)
        rows = enumerate(read_rows(source)[:limit])
        lists, problems = read_each(rows, items_of, source)
        refuse_rows(problems, f"read as {self.name}", self._way_out(source, missing))
        items = list(chain.from_iterable(lists))
        if not items and counts:
            self._refuse_unused(source, counts)
        return items

    def stream(
        self,
        source: str | Path,
        columns: Columns | None = None,
        each: Callable[[Item], Sequence[Item]] = lambda item: (item,),
        counts: Counter[str] | None = None,
    ) -> Sequence[Item]:
        """As `read`, but the rows of large sources stay there (fgrlhf/data/stream.py).

        Args:
          each: an item -> those that take its place.
        """
        stored = stored_rows(source)
        if stored is None:
            items = self.read(source, columns, counts=counts)
            return [new for item in items for new in each(item)]
        columns = columns or {}
        check_columns(columns, (*self.names, CLUSTER), str(source))
        missing: set[str] = set()
        read_first = self._reader(columns, missing, counts)
        # what a row adds to the counts is counted once
        read_later = self._reader(columns, missing, None if counts is None else Counter())
        n_read = 0

        def items_of(number: int | str, values: Mapping[str, Any]) -> list[Item]:
            return [new for item in read_later(number, values) for new in each(item)]

        def count_items(number: int | str, values: Mapping[str, Any]) -> int:
            nonlocal n_read
            items = read_first(number, values)
            n_read += len(items)
            return sum(len(each(item)) for item in items)

        found, problems = items_in(stored, count_items, items_of, source)
        refuse_rows(problems, f"read as {self.name}", self._way_out(source, missing))
        if not n_read and counts:
            self._refuse_unused(source, counts)
        return found

    def _refuse_unused(self, source: str | Path, counts: Counter[str]) -> NoReturn:
        """Raise the error of a source whose rows are all left out."""
        left_out = ", ".join(f"{what}: {count:,}" for what, count in counts.most_common())
        raise UserError(
            f"{shorten(str(source))} has no row of {self.name} that is used ({left_out}). Give"
            " a file with others too"
        )

    def _reader(
        self,
        columns: Columns,
        missing: set[str],
        counts: Counter[str] | None = None,
        reading: Reading = CODE_POINTS,
        separator: str | None = None,
    ) -> Callable[[int | str, Mapping[str, Any]], list[Item]]:
        """(number of a row, its values) -> the items in it.

        Args:
          missing: receives the names that a row lacks.
        """

        def items_of(number: int | str, values: Mapping[str, Any]) -> list[Item]:
            try:
                rows = self.split(Row(values, columns, counts, reading, separator))
                items = [self._item(row, int(number), counts) for row in rows]
            except RowError as error:
                missing.update(error.missing)
                raise
            return [item for item in items if item is not None]

        return items_of

    def _item(self, row: Row, number: int, counts: Counter[str] | None) -> Item | None:
        """The item in a row; None if it is left out, which is counted."""
        try:
            return self.parse(accepted(row, self.names), number)
        except LeftOutError as error:
            if counts is None:
                raise
            counts[error.what] += 1
            return None

    def _way_out(self, source: str | Path, missing: Collection[str]) -> str:
        """What to do about keys that rows do not have: the user's may have other names."""
        names = [name for name in self.names if name in missing]
        if not names:
            return CORRECT
        keys = " or ".join(f"columns.{name}=KEY" for name in names)
        return (
            f"If the rows have other keys, add {keys}. A command without `columns` needs a file"
            f" with the right keys:\n  fgrlhf data convert {quote(str(source))} FILE"
            f" format={self.name} columns.{names[0]}=KEY"
        )


# ---- prompts -------------------------------------------------------------------------------------


def prompt_of(row: Row, number: int, prompt: PromptText, references: Sequence[str]) -> Prompt:
    """The prompt of a row. Call it last: all keys that were not read before become `meta`."""
    prompt_id = _id(row, number)  # before `rest`, since the key of the id is read too
    meta = row.rest()
    for key in PARTS:
        part = meta.get(key)
        if isinstance(part, str) and part.strip():
            row.counts[f"rows whose `{key}` is no part of the prompt ({JOIN})"] += 1
    if CLUSTER in row.columns:  # also under its own name, as metrics read it
        meta[CLUSTER] = row.get(CLUSTER)
    return Prompt(prompt_id, prompt.text, tuple(references), meta=meta, messages=prompt.messages)


def _id(row: Row, number: int) -> str:
    """The `id` of a row, a text or a whole number; without one, the number of the row."""
    value = row.get("id")
    if value is None:
        return str(number)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return row.text("id")


def prompt_text(row: Row, *names: str) -> PromptText:
    """The prompt, a text or a conversation, under the first of these names that the row has."""
    name = row.first_of(*names)
    if not isinstance(row.columns.get(name, ""), str):
        return PromptText.of(_joined(row, name))
    value = row.get(name)
    if isinstance(value, list):
        key = row.key(name)
        messages = turns_of(row, name)
        if messages[-1][0] == ASSISTANT:
            raise RowError(
                f"{key}[{len(value) - 1}].role",
                "is the assistant, which would have to answer itself: a prompt ends with the user's"
                " message",
            )
        return conversation_prompt(key, messages)
    return PromptText.of(row.text(name))


def _joined(row: Row, name: str) -> str:
    """The texts of several keys as one, with an empty line between; blank ones are left out.

    Raises:
      RowError: a value is no text, or all are blank.
    """
    values = zip(key_list(row.columns[name]), row.get(name))
    parts = [
        check_text(key, value, may_be_blank=True) for key, value in values if value is not None
    ]
    text = "\n\n".join(part for part in parts if part.strip())
    return check_text(row.key(name), text)


def turns_of(row: Row, name: str) -> list[Message]:
    """The messages under a name. ShareGPT's follow the row's text under `system`, if it has one."""
    key = row.key(name)
    values = row.get(name)
    messages = messages_of(key, values)
    if not any(name == CONVERSATIONS or "from" in value for value in values):
        return messages
    system = row.get(SYSTEM)
    if not isinstance(system, str) or not system.strip():
        return messages
    if messages[0][0] == SYSTEM:
        raise RowError(SYSTEM, f"is given, and `{key}` begins with such a message: keep one")
    return [(SYSTEM, system), *messages]


def references_of(row: Row, *names: str) -> tuple[str, ...]:
    """The references, one text or several, under the first of these names that the row has.

    An empty list means none, like null: files with columns, such as Parquet, have the key in every
    row.
    """
    name = row.first_given(*names)
    if name is None:
        return ()
    value = row.get(name)
    if isinstance(value, str):
        return (row.text(name),)
    return check_texts(row.key(name), value)


def prompt_row(prompt: Prompt, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The row of a prompt, with a format's values, which take precedence over the task's keys."""
    row: dict[str, Any] = {"id": prompt.id, "prompt": _prompt_value(prompt), **(values or {})}
    if prompt.references:
        row["references"] = list(prompt.references)
    return row | {key: value for key, value in prompt.meta.items() if key not in row}


def is_written_as_text(prompt: Prompt) -> bool:
    """Whether the text of a prompt alone is read as the same prompt."""
    return not prompt.messages or prompt.messages == messages_in(prompt.text)


def _prompt_value(prompt: Prompt) -> str | list[dict[str, str]]:
    """The text of a prompt, or the conversation if the text alone would not be read as the same."""
    if is_written_as_text(prompt):
        return prompt.text
    return [{"role": role, "content": text} for role, text in prompt.messages]


# ---- responses and spans -------------------------------------------------------------------------


def response_text(row: Row, *names: str) -> str:
    """The response under the first of these names that the row has.

    It is a text, or a conversation of a single message by the assistant.
    """
    name = row.first_of(*names)
    value = row.get(name)
    if isinstance(value, list):
        key = row.key(name)
        _, response = split_answer(key, messages_of(key, value))
        return check_text(key, response)
    return row.text(name)


def span_in(key: str, start: Any, end: Any, text: str, side: str = "response") -> tuple[int, int]:
    """A range of characters, [start, end), that is in the text and is not empty.

    Args:
      side: the name of the text in messages.
    """
    length = f"the {side} has {len(text)} characters"
    start = check_place(f"{key}.start", start, len(text), length)
    end = check_place(f"{key}.end", end, len(text) + 1, length)
    if start >= end:
        raise RowError(key, f"is empty: it starts at {start} and ends at {end}")
    return start, end


def counted_span(
    row: Row, key: str, start: Any, end: Any, text: str, side: str = "response"
) -> tuple[int, int]:
    """`span_in` of offsets that are counted as the row counts them."""
    if row.reading is not CODE_POINTS:
        start = check_whole(f"{key}.start", start)
        end = check_whole(f"{key}.end", end)
        start, end = row.reading.span(text, start, end)
    try:
        return span_in(key, start, end, text, side)
    except RowError as error:
        if start == end and row.reading is CODE_POINTS:
            hint = "; if the end is the last character of a span, give offsets.end=inclusive"
            raise RowError(error.key, f"{error.reason}{hint}") from None
        raise


def _side(value: Any) -> str:
    """The side of a span. Other projects say whether it is in the source: true or false."""
    if value is None or value is False:
        return RESPONSE
    if value is True:
        return SOURCE
    if value not in SIDES:
        raise ValueError(f"must be one of {', '.join(SIDES)}, or true for the source")
    return value


class SpanRow(Record):
    """A span in a row. Its offsets are checked when its text is known."""

    start: Any = None
    end: Any = None
    side: Annotated[str, BeforeValidator(_side)] = RESPONSE
    quote: AnyText | None = None
    severity: Text | None = None
    evidence: AnyText | None = None
    reason: AnyText | None = None


def read_inside(row: Row, name: str, kind: type[Part], place: str, element: Any) -> Part:
    """An element of the list `name` as a record, whose keys `columns` may rename.

    Its other keys are counted.

    Raises:
      RowError: it is not such a record, or has no key to which `columns` maps one of its parts.
    """
    values = dict(check_object(place, element))
    used = set()
    for part in kind.model_fields:
        column = f"{name}.{part}"
        path = str(row.columns.get(column, part))
        used |= {path, path.partition(".")[0]}
        if column not in row.columns:
            continue
        try:
            values[part] = look_up(element, path)
        except RowError as error:
            raise RowError(f"{place}.{error.key}", error.reason) from None
    row.counts.update(f"`{name}.{key}`, not read" for key in element if key not in used)
    return read(kind, values, place)
