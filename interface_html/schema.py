"""The schema of a task's pages: the texts of an item and the feedback to collect on it.

`tasks/<task>/interface_html/schema.js` is one statement, `window.FG_SCHEMA = {JSON};`, with comment
lines above it. It is a script because a page that is opened from disk can load scripts but not
JSON. The pages run it, and `load_schema` reads the JSON in it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.strict import StrictModel, refuse, validate
from fgrlhf.data.judgements import RESPONSE, SOURCE
from fgrlhf.data.places import SentenceKeys

ASSIGNMENT = "window.FG_SCHEMA ="
MOST_OUTPUTS = 9  # the comparison page names them A to I
PageName = Literal["annotation", "comparison", "rating"]
ALL_PAGES = "all"  # of the task
PAGES_HELP = "separated by commas, such as annotation,rating; all: every page of the task"
Side = Literal["response", "source"]
UNIQUE = ("name", "letter", "key")  # of a kind among kinds, and of a severity among severities
OUTPUT = "output "  # the side of marks in another output than the first: with its index
PAGE_KEYS = "CEGNPSXY"  # letters that are keys of the annotation page


def _like(pattern: str, words: str) -> AfterValidator:
    """A check of a text, with a message in words in place of the pattern."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f"must be {words} (got {shorten(repr(value))})")
        return value

    return AfterValidator(check)


Color = Annotated[str, _like("#[0-9A-Fa-f]{6}", "a colour such as #E7040F")]
Digit = Annotated[str, _like("[1-9]", "one digit, 1 to 9")]
CapitalLetter = Annotated[str, _like("[A-Z]", "one capital letter, A to Z")]
SmallLetter = Annotated[str, _like("[a-z]", "one lower-case letter, a to z")]
LetterKey = Annotated[
    str, _like(r"(Shift\+)?[A-Z]", "one capital letter, with or without Shift+, as M or Shift+M")
]


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
    letter: CapitalLetter = Field(description="badge in the text")
    key: Digit = Field(description="keyboard key")
    color: Color
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
    """How serious an error is. `with_severity_defaults` gives what a schema leaves out."""

    name: str = Field(min_length=1, description="as stored")
    label: str = Field(min_length=1, description="as shown; by default the name")
    letter: SmallLetter = Field(
        description="after the badge in the text: I3m; by default the first letter of the name that"
        " no other severity has"
    )
    key: LetterKey = Field(
        description="keyboard key: a letter, such as M or Shift+M; by default the first letter of"
        " the name that is no other key"
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
    def _check_all(self) -> "Schema":
        reasons = [*self._wrong_kinds(), *self._wrong_texts(), *self._wrong_pages()]
        refuse([("", reason) for reason in reasons])
        return self

    def _wrong_kinds(self) -> Iterator[str]:
        for kind in self.errors:
            if kind.side == SOURCE and kind.needs != "nothing":
                yield f"{kind.name} is marked in the source: its `needs` must be nothing"
            if kind.positive and kind.needs != "nothing":
                yield f"{kind.name} is positive: its `needs` must be nothing"
        needs_sentences = any(kind.needs == "sentences" for kind in self.errors)
        if self.fields.context is None and (self.missing or needs_sentences):
            yield "types that refer to sentences need `fields.context`, which is null"
        if self.severities and not self.errors:
            yield "`severities` are for errors, and `errors` is []: leave them out"
        if self.severity_required and not self.severities:
            yield "`severity_required` needs `severities`, which is []"

    def _wrong_texts(self) -> Iterator[str]:
        named = {*self.text_keys, *self.context_keys}
        missing, more = sorted(named - set(self.row)), sorted(set(self.row) - named)
        if missing:
            yield f"`row` lacks {', '.join(missing)}, which `fields` names"
        if more:
            yield (
                f"`row` has {', '.join(more)}, which `fields` does not name: remove it; files may"
                " have more keys than `row`"
            )

    def _wrong_pages(self) -> Iterator[str]:
        count = len(self.fields.outputs)
        if self.compares and count < 2:
            yield "a comparison needs two or more `fields.outputs`"
        if not self.pages:
            yield "there is nothing to judge: set `errors`, `missing`, `comparison` or `ratings`"
        if self.mark_outputs and count < 2:
            yield "`mark_outputs` needs two or more `fields.outputs`"
        if self.mark_outputs and all(kind.side == SOURCE for kind in self.errors):
            yield "`mark_outputs` needs kinds of `errors` that are marked in an output"
        if self.mark_outputs and (self.correction or self.missing):
            yield (
                "`mark_outputs` excludes `correction` and `missing`, which are about one output:"
                " set them to false and []"
            )
        for page, texts in self.page_guidelines.items():
            if page not in self.pages:
                yield f"`page_guidelines` has {page}, a page that the task lacks"
            if not texts:
                yield f"the guideline of the {page} page is []: leave it out"

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


def needed_pages(schema: Schema, pages: str) -> Sequence[PageName]:
    """The pages that a setting lists, in the task's order.

    Raises:
      UserError: the task has no such page, or none is listed.
    """
    names = [name.strip() for name in pages.split(",") if name.strip()]
    if names == [ALL_PAGES]:
        return schema.pages
    for name in names or [""]:
        if name not in schema.pages:
            raise UserError(
                f"pages={shorten(pages)}: the task {schema.task} has no page"
                f" `{shorten(name)}`: set pages={','.join(schema.pages)}, some of them, or leave"
                " out pages=..."
            )
    return [page for page in schema.pages if page in names]


def with_severity_defaults(severities: Sequence[Any]) -> list[Any]:
    """Severities with the values that a schema left out. A name alone is a severity too.

    What has no default, such as the key of a name without letters, stays missing.
    templates/rules.js has the same as `FG.severities`.
    """
    given = [{"name": value} if isinstance(value, str) else value for value in severities]
    letters, keys = _texts(given, "letter"), _texts(given, "key")
    filled = []
    for value in given:
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            name = value["name"]
            value = {"label": name, **value}
            _set_first(value, "letter", name.lower(), ascii_lowercase, letters)
            possible = set(ascii_uppercase) - set(PAGE_KEYS)
            _set_first(value, "key", name.upper(), possible, keys)
        filled.append(value)
    return filled


def _set_first(
    value: dict[str, Any], key: str, name: str, possible: Iterable[str], used: list[str]
) -> None:
    """Set a missing value to the first possible letter of a name that is not used yet."""
    free = [letter for letter in name if letter in possible and letter not in used]
    if key not in value and free:
        value[key] = free[0]
        used.append(free[0])


def _texts(values: Iterable[Any], key: str) -> list[str]:
    """The texts under a key of those values that have one there."""
    found = [value.get(key) for value in values if isinstance(value, dict)]
    return [text for text in found if isinstance(text, str)]


def _clashes(tree: Mapping[str, Any]) -> Iterator[str]:
    """Names, letters and keys that are taken, in a tree that may have other mistakes too."""
    lists = {key: tree.get(key) for key in ("errors", "missing", "severities", "ratings")}
    lists["skip reasons"] = tree.get("skip_reasons")
    values = {key: found if isinstance(found, list) else [] for key, found in lists.items()}
    kinds = [*values.pop("errors"), *values.pop("missing")]
    for noun, group in {"types": kinds, **values}.items():
        for attribute in ("name",) if noun in ("ratings", "skip reasons") else UNIQUE:
            for text, count in Counter(_texts(group, attribute)).items():
                if count > 1:
                    yield f"two {noun} have the {attribute} {text!r}: make it unique"
    free = f"set another letter than {', '.join(PAGE_KEYS)}"
    for kind in kinds:
        for letter in _texts([kind], "letter"):
            if len(letter) == 1 and letter in PAGE_KEYS:
                yield (
                    f"{kind.get('name')} has the letter {letter!r}, which is a key of the"
                    f" annotation page: {free}"
                )
    for severity in values["severities"]:
        for key in _texts([severity], "key"):
            if key and key.removeprefix("Shift+") in tuple(PAGE_KEYS):
                yield (
                    f"the severity {severity.get('name')} has the key {key!r}, and {key[-1]} is a"
                    f" key of the annotation page, with and without Shift: {free}"
                )


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
    if isinstance(tree.get("severities"), list):
        tree["severities"] = with_severity_defaults(tree["severities"])
    return validate(Schema, tree, source=str(path), others=list(_clashes(tree)), is_json=True)
