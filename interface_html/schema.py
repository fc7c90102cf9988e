"""A task as the pages and the server see it: one schema file of error types, fields and rules.

The file is a classic script, `window.FG_SCHEMA = {JSON};`, because a page opened from disk can load
scripts but no JSON. tasks/qa_feedback/interface_html/schema.js is the one of this task.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fgrlhf.config import StrictModel, validate
from fgrlhf.errors import UserError

FOLDER = Path(__file__).parent
ASSIGNMENT = "window.FG_SCHEMA ="
QA_SCHEMA = FOLDER.parent / "tasks/qa_feedback/interface_html/schema.js"


class MissingType(StrictModel):
    """A kind of missing information: where it is said are sentences of a passage."""

    name: str = Field(min_length=1, description="as stored")
    label: str = Field(min_length=1, description="as shown")
    letter: str = Field(pattern="^[A-Z]$")
    key: str = Field(pattern="^[1-9]$")
    color: str = Field(pattern="^#[0-9A-Fa-f]{6}$")
    help: str


class ErrorType(MissingType):
    """A kind of error in a stretch of text, and what it must point to."""

    needs: Literal["nothing", "earlier text", "sentences"]


class Fields(StrictModel):
    """The keys of a row that hold an item's texts; null where the task has none."""

    question: str
    passages: str | None
    reference: str | None
    text: str = Field(description="the text that is judged in detail")
    answers: tuple[str, ...] = Field(description="the texts that are compared; one: no comparison")


class Schema(StrictModel):
    """Everything a page or the server knows of a task."""

    task: str = Field(pattern="^[a-z][a-z0-9_]*$")
    title: str
    guideline_version: str = Field(min_length=1)
    guideline: tuple[str, ...]
    unit: Literal["word", "sentence"] = Field(description="what a marked stretch is made of")
    fields: Fields
    row: tuple[str, ...] = Field(description="keys of a row, in the order they are written")
    errors: tuple[ErrorType, ...] = Field(min_length=1)
    missing: tuple[MissingType, ...]
    correction: bool = Field(description="the annotator edits the text until nothing is wrong")

    @model_validator(mode="after")
    def _consistent(self) -> "Schema":
        kinds = [*self.errors, *self.missing]
        for what in ("name", "letter", "key"):
            twice = [
                value
                for value, n in Counter(getattr(kind, what) for kind in kinds).items()
                if n > 1
            ]
            if twice:
                raise ValueError(f"two types have the {what} {twice[0]!r}: each needs its own")
        fields = self.fields
        if fields.passages is None and (
            self.missing or any(kind.needs == "sentences" for kind in self.errors)
        ):
            raise ValueError(
                "types that point to sentences need `fields.passages`: the key of the passages"
            )
        used = {
            fields.question,
            fields.text,
            *fields.answers,
            fields.passages or fields.text,
            fields.reference or fields.text,
        }
        if not used <= set(self.row):
            raise ValueError(
                f"`row` lacks {', '.join(sorted(used - set(self.row)))}, which `fields` names"
            )
        if len(self.fields.answers) > 9:
            raise ValueError(f"{len(self.fields.answers)} answers: at most 9 can be compared")
        return self

    @property
    def compares(self) -> bool:
        return len(self.fields.answers) > 1

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Indices of the answers a preference compares, in its order."""
        count = len(self.fields.answers)
        return tuple((i, j) for i in range(count) for j in range(i + 1, count))

    def error_type(self, name: Any) -> ErrorType | None:
        return next((kind for kind in self.errors if kind.name == name), None)

    def passages(self, row: Mapping[str, Any]) -> list | None:
        return row[self.fields.passages] if self.fields.passages else None


def load_schema(path: str | Path = QA_SCHEMA) -> Schema:
    """Read a schema file. Raises `UserError` with every mistake in it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the schema {path} cannot be read: {error}") from None
    head, found, body = text.partition(ASSIGNMENT)
    if not found or re.search(r"^(?!\s*//|\s*$)", head, flags=re.M):
        raise UserError(
            f"{path} is no schema: it must be `{ASSIGNMENT} {{JSON}};`, with `//` lines at most"
            " before it"
        )
    try:
        tree = json.loads(body.strip().removesuffix(";"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: what follows `{ASSIGNMENT}` is not valid JSON: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: what follows `{ASSIGNMENT}` must be an object")
    return validate(Schema, tree, source=str(path))
