"""Items, and the interface between a task's files and the feedback programs.

The pages, the server and the reports work with items and with the documents that
interface_html/rules.py describes. A format reads them from files and writes them to files.
interface_html/row_format.py is the default. A task with other files defines its own
`FeedbackFormat` as `FORMAT` in its module `feedback_format`;
tasks/<task>/interface_html/format.js is the same for the browser.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, read_jsonl
from fgrlhf.base.records import Complaint
from fgrlhf.metrics.clusters import CLUSTER
from fgrlhf.text_types import Prompt

if TYPE_CHECKING:
    from interface_html.schema import Schema

# the key of ratings has a space: a file's rows may have `rating` or `ratings` of their own
RATINGS = "output ratings"
FEEDBACK_KEYS = ("feedback", "preference", RATINGS)
# the references after the first, which the pages show: a list of texts
FURTHER_REFERENCES = "further references"
# of items to adjudicate: see submitted.py
ANNOTATIONS = "annotations"
SHARED = "shared"
COMPARISONS = "submitted comparisons"
RATED = "submitted ratings"
# of items, and never of feedback rows
SUGGESTION_KEYS = ("suggestions", "suggestions_shown")  # see suggestions.py
ITEM_KEYS = (*SUGGESTION_KEYS, COMPARISONS, RATED)


class ItemError(ValueError):
    """A row that is not an item, with all its problems."""

    def __init__(self, complaints: Iterable[Complaint]):
        self.complaints = tuple(complaints)
        super().__init__("; ".join(f"{field}: {reason}" for field, reason in self.complaints))


class BlankItemError(ItemError):
    """A row without judgements in which an output is blank, as some samples are.

    It is left out: there is nothing to judge in it, and nobody made a mistake.
    """


@dataclass(frozen=True)
class Item:
    """The texts that annotators judge, with the feedback on them.

    Args:
      id: unique among the items of a study.
      row: the texts under the keys of `Schema.row`, and other keys of the file's row. If the item
        was judged, `feedback` (an annotation, where `no-error` may be missing), `preference` and
        `output ratings` (see ratings.py). The `messages` of a title that is a conversation, and the
        `further references` of an item with several.
    """

    id: str
    row: Mapping[str, Any]

    @property
    def feedback(self) -> Mapping[str, Any] | None:
        return self.row.get("feedback")

    @property
    def cluster(self) -> str | None:
        """What the item shares with others, such as a document; None if its row does not say."""
        name = self.row.get(CLUSTER)
        return None if name in (None, "") else str(name)

    @property
    def preference(self) -> list[int] | None:
        return self.row.get("preference")

    @property
    def ratings(self) -> Mapping[str, Mapping[str, int]] | None:
        return self.row.get(RATINGS)


@dataclass(frozen=True)
class PromptReferences:
    """A row of a prompts file.

    Args:
      id: None if the row has none.
      text: of the prompt.
      references: its reference outputs.
    """

    id: str | None
    text: str
    references: Sequence[str]


class FeedbackFormat(Protocol):
    """The rows of a task's files."""

    def read(self, path: str | Path) -> list[Any]:
        """The rows of a file of items, samples or feedback. Raises `UserError`."""
        ...

    def references(self, path: str | Path) -> Sequence[PromptReferences]:
        """The prompts of a prompts file with their reference outputs, in order.

        Raises:
          UserError: the file cannot be read or is malformed.
        """
        ...

    def prompt_text(self, row: Mapping[str, Any]) -> str:
        """The text of a row's prompt, as `references` has it; "" if the row is malformed."""
        ...

    def item_row(
        self, schema: Schema, row: Mapping[str, Any], references: Sequence[str]
    ) -> dict[str, Any]:
        """The `Item.row` of a file's row.

        Args:
          schema: the task's schema.
          row: the file's row, without its `id`.
          references: the reference outputs of a sample, which are not in its row.

        Raises:
          BlankItemError: an output is blank, and nothing else is wrong.
          ItemError: the row is not an item. The caller checks the texts themselves.
        """
        ...

    def feedback_problems(self, schema: Schema, row: Mapping[str, Any]) -> Iterable[Complaint]:
        """Problems of the feedback in an `Item.row` whose texts are valid."""
        ...

    def feedback_row(self, schema: Schema, item: Item) -> dict[str, Any]:
        """The row of a feedback file for an item and its feedback, if it has any."""
        ...

    def prompt(self, schema: Schema, item: Item) -> Prompt:
        """The prompt of an item as the task's `rm_prefix` reads it."""
        ...

    def segment_labels(
        self, schema: Schema, item: Item, annotations: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Sequence[Sequence[str]]]:
        """The labels that annotations give to the segments of the text, for the agreement report.

        Returns:
          For each way of segmenting the text, by its name in the report: the segments, each with
          one label per annotation.
        """
        ...


def read_rows(path: str | Path) -> list[Any]:
    """The rows of a JSON array or of JSON lines; a single object is one row."""
    rows = read_jsonl(path) if str(path).endswith(".jsonl") else read_json(path)
    if isinstance(rows, dict):
        return [rows]
    if not isinstance(rows, list):
        raise UserError(f"{path} must hold an array of rows")
    return rows
