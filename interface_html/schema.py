"""The schema of a task's pages: the texts of an item and the feedback to collect on it.

`tasks/<task>/interface_html/schema.js` is one statement, `window.FG_SCHEMA = {JSON};`, with comment
lines above it. It is a script because a page that is opened from disk can load scripts but not
JSON. The pages run it, and `load_schema` reads the JSON in it.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fgrlhf.config import StrictModel, validate
from fgrlhf.data.judgements import RESPONSE, SOURCE
from fgrlhf.data.problems import SentenceKeys
from fgrlhf.errors import UserError

ASSIGNMENT = "window.FG_SCHEMA ="
MOST_OUTPUTS = 9  # the comparison page names them A to I
PageName = Literal["annotation", "comparison", "rating"]
Pages = Literal["annotation", "comparison", "rating", "both"]  # both: all pages of the task
Side = Literal["response", "source"]
OUTPUT = "output "  # the side of marks in another output than the first: with its index
PAGE_KEYS = "CEGNPSXY"  # letters that are keys of the annotation page


class Example(StrictModel):
    """A worked example of a kind or of a judgement, for the guideline panel."""

    text: str = Field(min_length=1, description="what could be marked or judged")
    applies: bool = Field(description="whether the kind or the judgement is right for it")
    why: str = Field(min_length=1, description="the reason")


class Case(StrictModel):
    """A case that the guideline leaves open, and the answer, for the guideline panel."""

    case: str = Field(min_length=1)
    answer: str = Field(min_length=1)


class MissingType(StrictModel):
    """A kind of missing information. Annotators refer to the sentences that contain it."""

    name: str = Field(min_length=1, description="as stored")
    label: str = Field(min_length=1, description="as shown")
    letter: str = Field(pattern="^[A-Z]$", description="badge in the text")
    key: str = Field(pattern="^[1-9]$", description="keyboard key")
    color: str = Field(pattern="^#[0-9A-Fa-f]{6}$")
    help: str = Field(description="when it applies")
    examples: tuple[Example, ...] = Field((), description="right and nearly right cases")


class ErrorType(MissingType):
    """A kind of error in a span of the text, and the evidence that it needs."""

    needs: Literal["nothing", "earlier text", "sentences"]
    side: Side = Field(
        RESPONSE, description="the text in which it is marked; source: the text of `fields.title`"
    )
    positive: bool = Field(False, description="whether it is no error: a span that is liked")
    reason: Literal["none", "optional", "required"] = Field(
        "none", description="whether the annotator can or must say why, for each mark"
    )


class Severity(StrictModel):
    """How serious an error is."""

    name: str = Field(min_length=1, description="as stored")
    label: str = Field(min_length=1, description="as shown")
    letter: str = Field(pattern="^[a-z]$", description="after the badge in the text: I3m")
    key: str = Field(
        pattern=r"^(Shift\+)?[A-Z]$", description="keyboard key: a letter, such as M or Shift+M"
    )


class SkipReason(StrictModel):
    """Why an item cannot be judged."""

    name: str = Field(min_length=1, description="as stored")
    label: str = Field(min_length=1, description="as shown")
    needs_text: bool = Field(default=False, description="whether the annotator must explain it")


# templates/skip.js has the same
SKIP_REASONS = (
    SkipReason(name="cannot-be-judged", label="Nothing here can be judged"),
    SkipReason(name="broken-text", label="The text is broken or cut off"),
    SkipReason(name="offensive", label="I do not want to read this"),
    SkipReason(name="language", label="Not in a language that I know"),
    SkipReason(name="unsure", label="I am not sure how to judge it"),
    SkipReason(name="other", label="Another reason", needs_text=True),
)


class Context(StrictModel):
    """The texts to judge an output by: a list of sources, each a title and sentences."""

    key: str = Field(description="key in a row")
    heading: str = Field(description="heading on the pages")
    noun: str = Field(description="name of a single source")
    id: str = Field(description="key of a source's number in stored evidence")
    sentences: str = Field(description="key of the sentence numbers in stored evidence")

    @property
    def sentence_keys(self) -> SentenceKeys:
        return SentenceKeys(self.id, self.sentences, self.noun)


class Reference(StrictModel):
    """A reference output."""

    key: str = Field(description="key in a row")
    heading: str = Field(description="heading on the pages")


class Fields(StrictModel):
    """The keys of an item's texts, and their names on the pages.

    The keys are names of the task's choice. A file in the default format has keys of its own: its
    `prompt` becomes the title, its `responses` become the outputs, in the same order.
    """

    title: str = Field(description="key of the text at the top of the page")
    context: Context | None
    reference: Reference | None
    outputs: tuple[str, ...] = Field(
        min_length=1,
        max_length=MOST_OUTPUTS,
        description="keys of the texts to judge, one for each response of a sample: all are"
        " compared and rated, and spans are marked in the first, with `mark_outputs` in all",
    )
    noun: str = Field(description="name of an output")


class Rating(StrictModel):
    """A scale on which annotators rate every output."""

    name: str = Field(min_length=1, description="as stored")
    label: str = Field(min_length=1, description="as shown")
    help: str = Field(description="what to judge")
    scale: Literal["likert", "percent"] = Field(
        description="likert: 1 to `points`, 1 is the lowest; percent: 0 to 100"
    )
    points: int = Field(5, ge=2, le=9, description="number of values of a Likert scale")
    anchors: dict[str, str] = Field({}, description="the meaning of values, by their number")

    @property
    def lowest(self) -> int:
        return 1 if self.scale == "likert" else 0

    @property
    def highest(self) -> int:
        return self.points if self.scale == "likert" else 100

    @model_validator(mode="after")
    def _check_anchors(self) -> "Rating":
        values = {str(value) for value in range(self.lowest, self.highest + 1)}
        for value in self.anchors:
            if value not in values:
                raise ValueError(
                    f"{self.name} has an anchor for {value!r}, which is no value of the scale: set"
                    f" anchors for {self.lowest} to {self.highest}"
                )
        return self


class Schema(StrictModel):
    """All that the pages and the server know about a task."""

    task: str = Field(pattern="^[a-z][a-z0-9_]*$")
    language: str = Field(
        "en",
        pattern="^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$",
        description="BCP 47 code of the language of the texts in the schema",
    )
    title: str
    guideline_version: str = Field(min_length=1)
    guideline: tuple[str, ...]
    page_guidelines: dict[PageName, tuple[str, ...]] = Field(
        {}, description="the guidelines of single pages, which these show instead of `guideline`"
    )
    examples: tuple[Example, ...] = Field(
        (), description="right and nearly right judgements that no kind of error has"
    )
    faq: tuple[Case, ...] = Field((), description="what annotators ask, with the answers")
    unit: Literal["word", "sentence"] = Field(description="the unit of spans")
    fields: Fields
    row: tuple[str, ...] = Field(
        description="the keys that `fields` names, each once, in the order in which an item has its"
        " texts: those of the title, the context, the reference and the outputs"
    )
    errors: tuple[ErrorType, ...] = Field(description="kinds of mark; []: spans are not marked")
    missing: tuple[MissingType, ...] = Field(description="kinds of missing information")
    correction: bool = Field(description="whether the annotator corrects the text")
    comparison: str | None = Field(description="how to compare the outputs; null: no comparison")
    ratings: tuple[Rating, ...] = Field((), description="scales on which all outputs are rated")
    severities: tuple[Severity, ...] = Field(
        (), description="choices for each error, from the mildest to the worst; []: not asked"
    )
    mark_outputs: bool = Field(
        False, description="whether errors are marked in every output; false: in the first only"
    )
    overlap: bool = Field(
        False, description="whether errors may overlap; two with the same span and kind never may"
    )
    severity_required: bool = Field(False, description="whether each error needs a severity")
    comment: Literal["none", "optional"] = Field(
        "none", description="whether the annotator can write a comment on an item"
    )
    skip_reasons: tuple[SkipReason, ...] = Field(
        SKIP_REASONS, description="reasons to skip an item; []: items cannot be skipped"
    )

    @model_validator(mode="after")
    def _check_types(self) -> "Schema":
        kinds = [*self.errors, *self.missing]
        for attribute in ("name", "letter", "key"):
            counts = Counter(getattr(kind, attribute) for kind in kinds)
            value, count = counts.most_common(1)[0] if counts else (None, 0)
            if count > 1:
                raise ValueError(f"two types have the {attribute} {value!r}: make it unique")
        for kind in kinds:
            if kind.letter in PAGE_KEYS:
                raise ValueError(
                    f"{kind.name} has the letter {kind.letter!r}, which is a key of the annotation"
                    f" page: set another one than {', '.join(PAGE_KEYS)}"
                )
        for kind in self.errors:
            if kind.side == SOURCE and kind.needs != "nothing":
                raise ValueError(
                    f"{kind.name} is marked in the source: its `needs` must be nothing"
                )
            if kind.positive and kind.needs != "nothing":
                raise ValueError(f"{kind.name} is positive: its `needs` must be nothing")
        needs_sentences = any(kind.needs == "sentences" for kind in self.errors)
        if self.fields.context is None and (self.missing or needs_sentences):
            raise ValueError("types that refer to sentences need `fields.context`, which is null")
        return self

    @model_validator(mode="after")
    def _check_severities(self) -> "Schema":
        for attribute in ("name", "letter", "key"):
            value = _repeated([getattr(severity, attribute) for severity in self.severities])
            if value is not None:
                raise ValueError(f"two severities have the {attribute} {value!r}: make it unique")
        for severity in self.severities:
            if severity.key[-1] in PAGE_KEYS:
                raise ValueError(
                    f"the severity {severity.name} has the key {severity.key!r}, and"
                    f" {severity.key[-1]} is a key of the annotation page, with and without Shift:"
                    f" set another letter than {', '.join(PAGE_KEYS)}"
                )
        if self.severities and not self.errors:
            raise ValueError("`severities` are for errors, and `errors` is []: leave them out")
        if self.severity_required and not self.severities:
            raise ValueError("`severity_required` needs `severities`, which is []")
        return self

    @model_validator(mode="after")
    def _check_skip_reasons(self) -> "Schema":
        value = _repeated([reason.name for reason in self.skip_reasons])
        if value is not None:
            raise ValueError(f"two skip reasons have the name {value!r}: make it unique")
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> "Schema":
        missing = sorted({*self.text_keys, *self.context_keys} - set(self.row))
        if missing:
            raise ValueError(f"`row` lacks {', '.join(missing)}, which `fields` names")
        return self

    @model_validator(mode="after")
    def _check_pages(self) -> "Schema":
        if self.compares and len(self.fields.outputs) < 2:
            raise ValueError("a comparison needs two or more `fields.outputs`")
        if not self.pages:
            raise ValueError(
                "there is nothing to judge: set `errors`, `missing`, `comparison` or `ratings`"
            )
        return self

    @model_validator(mode="after")
    def _check_other_keys(self) -> "Schema":
        more = sorted(set(self.row) - {*self.text_keys, *self.context_keys})
        if more:
            raise ValueError(
                f"`row` has {', '.join(more)}, which `fields` does not name: remove it; files may"
                " have more keys than `row`"
            )
        return self

    @model_validator(mode="after")
    def _check_mark_outputs(self) -> "Schema":
        if not self.mark_outputs:
            return self
        if len(self.fields.outputs) < 2:
            raise ValueError("`mark_outputs` needs two or more `fields.outputs`")
        if all(kind.side == SOURCE for kind in self.errors):
            raise ValueError("`mark_outputs` needs kinds of `errors` that are marked in an output")
        if self.correction or self.missing:
            raise ValueError(
                "`mark_outputs` excludes `correction` and `missing`, which are about one output:"
                " set them to false and []"
            )
        return self

    @model_validator(mode="after")
    def _check_ratings(self) -> "Schema":
        counts = Counter(scale.name for scale in self.ratings)
        for name, count in counts.items():
            if count > 1:
                raise ValueError(f"two ratings have the name {name!r}: make it unique")
        return self

    @model_validator(mode="after")
    def _check_page_guidelines(self) -> "Schema":
        for page, texts in self.page_guidelines.items():
            if page not in self.pages:
                raise ValueError(f"`page_guidelines` has {page}, a page that the task lacks")
            if not texts:
                raise ValueError(f"the guideline of the {page} page is []: leave it out")
        return self

    @property
    def text(self) -> str:
        """Key of the text in which spans are marked."""
        return self.fields.outputs[0]

    @property
    def text_keys(self) -> tuple[str, ...]:
        """Keys of a row with a single text each."""
        reference = [self.fields.reference.key] if self.fields.reference else []
        return (self.fields.title, *reference, *self.fields.outputs)

    @property
    def context_keys(self) -> tuple[str, ...]:
        """The key of the context, if there is one."""
        return (self.fields.context.key,) if self.fields.context else ()

    @property
    def marks_source(self) -> bool:
        """Whether spans are marked in the source too."""
        return any(kind.side == SOURCE for kind in self.errors)

    @property
    def response_kinds(self) -> tuple[str, ...]:
        """The names of the kinds of error that are marked in the response."""
        return tuple(
            kind.name for kind in self.errors if kind.side == RESPONSE and not kind.positive
        )

    @property
    def liked_kinds(self) -> tuple[str, ...]:
        """The names of the positive kinds, whose spans are liked and are no errors."""
        return tuple(kind.name for kind in self.errors if kind.positive)

    @property
    def asks_reasons(self) -> bool:
        """Whether a mark of some kind may have a reason."""
        return any(kind.reason != "none" for kind in self.errors)

    @property
    def marked_outputs(self) -> tuple[str, ...]:
        """Keys of the outputs in which errors are marked."""
        return self.fields.outputs if self.mark_outputs else self.fields.outputs[:1]

    def side_key(self, side: str) -> str:
        """The key of the text that a side names: see `rules.side_of`."""
        if side == SOURCE:
            return self.fields.title
        return self.fields.outputs[int(side.removeprefix(OUTPUT)) if side != RESPONSE else 0]

    def text_of(self, row: Mapping[str, Any], side: str) -> str:
        """The text of an item in which the spans of a side are."""
        return row[self.side_key(side)]

    @property
    def annotates(self) -> bool:
        return bool(self.errors or self.missing)

    @property
    def compares(self) -> bool:
        return self.comparison is not None

    @property
    def pages(self) -> tuple[PageName, ...]:
        """The pages of this task."""
        pages: list[PageName] = []
        if self.annotates:
            pages.append("annotation")
        if self.compares:
            pages.append("comparison")
        if self.ratings:
            pages.append("rating")
        return tuple(pages)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Indices of the outputs that a preference compares, in its order."""
        count = len(self.fields.outputs)
        return tuple((i, j) for i in range(count) for j in range(i + 1, count))

    def error_type(self, name: str) -> ErrorType:
        return next(kind for kind in self.errors if kind.name == name)

    def sources(self, row: Mapping[str, Any]) -> Sequence[Any]:
        """The row's context; [] if the task has none."""
        return row[self.fields.context.key] if self.fields.context else []


def needed_pages(schema: Schema, pages: Pages) -> Sequence[PageName]:
    """The pages that a setting names. Raises `UserError` if the task has no such page."""
    if pages == "both":
        return schema.pages
    if pages not in schema.pages:
        raise UserError(
            f"the task {schema.task} has no {pages} page: set pages={schema.pages[0]}, or leave out"
            " pages=..."
        )
    return [pages]


def _repeated(values: Sequence[str]) -> str | None:
    """A value that occurs twice or more; None if all are different."""
    return next((value for value, count in Counter(values).items() if count > 1), None)


def load_schema(path: str | Path) -> Schema:
    """Read a schema file. Raises `UserError` with all mistakes in it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the schema {path} cannot be read: {error}") from None
    head, assignment, body = text.partition(ASSIGNMENT)
    if not assignment or re.search(r"^(?!\s*//|\s*$)", head, flags=re.M):
        raise UserError(
            f"{path} is not a schema: it must be `{ASSIGNMENT} {{JSON}};`, with only `//` lines"
            " before it"
        )
    try:
        tree = json.loads(body.strip().removesuffix(";"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: the text after `{ASSIGNMENT}` is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: the text after `{ASSIGNMENT}` must be an object")
    return validate(Schema, tree, source=str(path))
