"""One row of a file: its values under the names of a row format, and checks of them.

A user's file may have other keys than the format. A mapping from the format's names to the file's
keys translates them:

    columns: {prompt: instruction, responses: [answer_a, answer_b], scores: ratings.overall}

A dot selects a key inside an object, or inside each element of a list. A list of keys gives the
list of their values. `spans.label: type` renames a key inside each element of `spans`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.base.records import RowError, check_object, check_text
from fgrlhf.data.locate import CODE_POINTS, Reading

Columns = Mapping[str, str | Sequence[str]]

PROMPT = "prompt"
# other keys under which files have the prompt
PROMPT_NAMES = ("instruction", "question", "query", "input")  # a task's word: a usual key

MOST_KEYS_SHOWN = 8  # of a row, in a message


class Row:
    """The values of one JSON object under a format's names.

    Args:
      values: the object.
      columns: the format's names -> the object's keys, if they differ.
      counts: what a reader notes about rows, such as contradictions -> how often.
      reading: how the row counts the offsets of spans.
      separator: what is between the steps of a text; None: a text has no steps.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        columns: Columns,
        counts: Counter[str] | None = None,
        reading: Reading = CODE_POINTS,
        separator: str | None = None,
    ):
        self.reading = reading
        self.separator = separator
        self.values = values
        self.columns = columns
        self.counts = Counter[str]() if counts is None else counts
        # keys that `columns` renames; they do not also count under their own names
        self._renamed = {key for path in columns.values() for key in key_list(path)}
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the row has a value other than null under this name."""
        return self.get(name) is not None

    def get(self, name: str) -> Any:
        """The value under this name; None if there is none.

        Raises:
          RowError: `columns` maps the name to a key that the row does not have.
        """
        if name in self.columns:
            path = self.columns[name]
            self._used.update(key for key in key_list(path) if key in self.values)
            if isinstance(path, str):
                return look_up(self.values, path)
            return [look_up(self.values, key) for key in path]
        if name in self._renamed:
            return None
        self._used.add(name)
        return self.values.get(name)

    def first_given(self, *names: str) -> str | None:
        """The first of these names under which the row has a value; None if there is none.

        Names in `columns` come first, since they were asked for. If there are such names, others do
        not count.
        """
        named = [name for name in names if name in self.columns]
        return next((name for name in named or names if self.has(name)), None)

    def first_of(self, name: str, *alternatives: str) -> str:
        """As `first_given`. Raises `RowError` if there is none."""
        names = (name, *alternatives)
        found = self.first_given(*names)
        if found is not None:
            return found
        for each in names:
            if each in self.columns:
                raise RowError(self.key(each), "must not be null")
        for each in names:
            if each in self.values and self.values[each] is None and each not in self._renamed:
                raise RowError(each, "is null, which means that the row has none")
        raise RowError(name, self._without(names), names)

    def _without(self, names: Sequence[str]) -> str:
        """The reason of an error: the row has none of these names."""
        keys = [shorten(key, 40) for key in list(self.values)[:MOST_KEYS_SHOWN]]
        if len(self.values) > MOST_KEYS_SHOWN:
            keys.append("...")
        alternatives = [f"`{name}`" for name in names[1:]]
        others = ""
        if len(alternatives) == 1:
            others = f", and so is {alternatives[0]}"
        elif alternatives:
            others = f", and so are {' and '.join(alternatives)}"
        return f"missing{others}; the row has {', '.join(keys) or 'no keys'}"

    def key(self, name: str) -> str:
        """The key of this name in the user's file, for messages."""
        path = self.columns.get(name, name)
        return path if isinstance(path, str) else f"columns.{name}"

    def text(self, name: str, may_be_blank: bool = False) -> str:
        """The text under this name. Raises `RowError` if it is not a text."""
        return check_text(self.key(name), self.get(name), may_be_blank)

    def rest(self) -> dict[str, Any]:
        """The values that the format did not read: they belong to the task."""
        return {key: value for key, value in self.values.items() if key not in self._used}


def look_up(value: Any, path: str) -> Any:
    """The value at a path of keys joined by dots; for a list, the values of its elements.

    A key that contains dots is found too. A number in place of a key of a list's elements is one
    of them, counted from 0.

    Raises:
      RowError: there is no such key.
    """
    return _look_up(value, path, path)


def _look_up(value: Any, rest: str, path: str) -> Any:
    """The value at `rest`, the remaining part of `path`."""
    if isinstance(value, Mapping) and rest in value:
        return value[rest]
    key, _, below = rest.partition(".")
    if isinstance(value, list) and key.isdecimal():
        if int(key) >= len(value):
            raise RowError(path, f"has no element {shorten(key, 20)}: the list has {len(value)}")
        return _look_up(value[int(key)], below, path) if below else value[int(key)]
    if isinstance(value, list):
        return [_look_up(check_object(path, item), rest, path) for item in value]
    if below and isinstance(value, Mapping) and key in value:
        return _look_up(value[key], below, path)
    raise RowError(path, "missing")


def key_list(path: str | Sequence[str]) -> list[str]:
    """The keys that a value of `columns` names."""
    return [path] if isinstance(path, str) else list(path)


def check_columns(columns: Columns, names: Sequence[str], source: str) -> None:
    """Check that a mapping has only names of the format, and no empty key.

    Raises:
      UserError: it does not.
    """
    for name, path in columns.items():
        if name not in names:
            raise UserError(
                f"columns.{shorten(name, 80)} is not a key of this row format;"
                f" {suggestion(name, names)}"
            )
        if not key_list(path) or not all(key.strip() for key in key_list(path)):
            raise UserError(f"columns.{name} has no key of {source}: give one, or leave it out")
