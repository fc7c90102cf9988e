"""The protocol of reward servers: responses in, scored spans in characters of the response out.

    GET  URL/v1/model    {"protocol", "model_sha256", "reward", "max_batch", "max_body_bytes"}
    POST URL/v1/scores   `ScoreRequest` -> {"protocol", "model_sha256", "request_id", "scores"}

`scores` has, for each item, a list of {"start", "end", "value", "label"}, or null if the reward
does not apply. A span is [start, end) in characters of the response; `"end": null` is the end of
the response with its end-of-sequence token. Spans may be in any order and may overlap, as those of
any reward.

`request_id` is the SHA-256 of all else in the request, so that a repeated request is recognised.
The header `Authorization: Bearer TOKEN` is required. A refusal has a body {"error": reason}.

JSON writes the shortest text that reads back to the same float64: values arrive bit for bit.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json
from fgrlhf.base.records import Record, RowError, read
from fgrlhf.configs.strict import StrictModel, validate
from fgrlhf.reward_models.prefix import Prefix, PrefixFn
from fgrlhf.rewards.kind import Sha256
from fgrlhf.scorers.answer_cache import content_hash
from fgrlhf.text_types import Prompt, SegmentScore

PROTOCOL = 1
LONGEST_LABEL = 1_000  # characters


Scores = list[SegmentScore] | None


class PrefixRow(StrictModel):
    """`Prefix` as JSON."""

    words: tuple[str, ...]
    context: tuple[tuple[int, int], ...]
    response_mark: tuple[str, ...]
    keeps_end: bool
    spaces: tuple[str, ...] | None = None

    @classmethod
    def of(cls, words: Prefix | Sequence[str]) -> dict[str, Any]:
        prefix = Prefix.of(words)
        return {
            "words": list(prefix.words),
            "context": [[part.start, part.stop] for part in prefix.context],
            "response_mark": list(prefix.response_mark),
            "keeps_end": prefix.keeps_end,
            "spaces": None if prefix.spaces is None else list(prefix.spaces),
        }

    def prefix(self) -> Prefix:
        """Raises `ValueError` if context or white space do not fit the words."""
        context = tuple(range(start, stop) for start, stop in self.context)
        return Prefix(self.words, context, self.response_mark, self.keeps_end, self.spaces)


class PromptRow(StrictModel):
    """A prompt, and the words that reward models read before its responses."""

    id: str
    text: str
    references: tuple[str, ...]
    messages: tuple[tuple[str, str], ...]
    with_context: PrefixRow
    without_context: PrefixRow


class ItemRow(StrictModel):
    """A response, and the index of its prompt in `prompts`."""

    prompt: Annotated[int, Field(ge=0)]
    response: str


class ScoreRequest(StrictModel):
    """The body of POST /v1/scores."""

    protocol: Literal[1]
    model_sha256: Sha256
    request_id: Sha256
    prompts: tuple[PromptRow, ...]
    items: tuple[ItemRow, ...]


# ---- requests ------------------------------------------------------------------------------------


def request_of(
    model_sha256: str, prefix_fn: PrefixFn, prompts: Sequence[Prompt], texts: Sequence[str]
) -> dict[str, Any]:
    """The JSON value of a request for the scores of `texts`. Each prompt is sent once.

    The rows of the task's data (`Prompt.meta`) are not sent.
    """
    rows: list[dict] = []
    items = []
    places: dict[int, int] = {}
    for prompt, text in zip(prompts, texts, strict=True):
        if id(prompt) not in places:
            places[id(prompt)] = len(rows)
            rows.append(_prompt_row(prefix_fn, prompt))
        items.append({"prompt": places[id(prompt)], "response": text})
    return {
        "protocol": PROTOCOL,
        "model_sha256": model_sha256,
        "request_id": request_id(model_sha256, rows, items),
        "prompts": rows,
        "items": items,
    }


def request_id(model_sha256: str, prompts: Sequence[Any], items: Sequence[Any]) -> str:
    """The content hash of a request."""
    return content_hash(PROTOCOL, model_sha256, prompts, items)


def _prompt_row(prefix_fn: PrefixFn, prompt: Prompt) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "text": prompt.text,
        "references": list(prompt.references),
        "messages": [list(message) for message in prompt.messages],
        "with_context": PrefixRow.of(prefix_fn(prompt, True)),
        "without_context": PrefixRow.of(prefix_fn(prompt, False)),
    }


def read_request(body: bytes) -> ScoreRequest:
    """The request in a body.

    Raises:
      UserError: it is not JSON, or lists every mistake.
    """
    try:
        tree = parse_json(body.decode("utf-8"))
    except ValueError as error:
        raise UserError(f"the body is not valid JSON: {shorten(error)}") from None
    if not isinstance(tree, dict):
        raise UserError("the body must be a JSON object")
    request = validate(ScoreRequest, tree, "the request", is_json=True)
    expected = request_id(request.model_sha256, tree["prompts"], tree["items"])
    if request.request_id != expected:
        raise UserError(f"request_id is {request.request_id}, but the content has {expected}")
    return request


# A server's prompts have their words here: `sent_prefix` is its `prefix_fn`.
_WITH, _WITHOUT = "with_context", "without_context"


def prompts_of(request: ScoreRequest) -> tuple[list[Prompt], list[str]]:
    """The prompt and the text of each item. Items with the same prompt have the same object.

    Raises:
      UserError: an item has no prompt, or the words before a response are inconsistent.
    """
    prompts = []
    for row in request.prompts:
        try:
            words = {_WITH: row.with_context.prefix(), _WITHOUT: row.without_context.prefix()}
        except ValueError as error:
            raise UserError(f"prompt {shorten(row.id, 60)}: {shorten(error)}") from None
        prompts.append(Prompt(row.id, row.text, row.references, words, row.messages))
    for number, item in enumerate(request.items):
        if item.prompt >= len(prompts):
            raise UserError(
                f"item {number} has prompt {item.prompt}, but there are {len(prompts)} prompts"
            )
    return (
        [prompts[item.prompt] for item in request.items],
        [item.response for item in request.items],
    )


def sent_prefix(prompt: Prompt, with_context: bool) -> Prefix:
    """The words before the response, as the client has sent them: `PrefixFn`."""
    return prompt.meta[_WITH if with_context else _WITHOUT]


# ---- answers -------------------------------------------------------------------------------------


class SpanScore(Record, extra="forbid"):
    """A span with its score. `end` is null for the whole response."""

    start: int
    end: int | None
    value: float
    label: Annotated[str, Field(max_length=LONGEST_LABEL)]
    std: float | None = None  # of an ensemble

    def within(self, text: str) -> SegmentScore:
        """The score. Raises `RowError` if the span is not within the response."""
        last = len(text) if self.end is None else self.end
        if not 0 <= self.start <= last <= len(text):
            end = "null" if self.end is None else self.end
            raise RowError(
                "",
                f"the span [{self.start}, {end}) is not within the response, which has {len(text)}"
                " characters",
            )
        return SegmentScore(self.start, self.end, self.value, self.label, self.std)


def read_scores(rows: Any, texts: Sequence[str]) -> list[Scores]:
    """The scores of an answer.

    Raises:
      ValueError: they are not scores of these texts; the message names the first fault.
    """
    if not isinstance(rows, list):
        raise ValueError(f"`scores` that are {_shown(rows)}, not a list")
    if len(rows) != len(texts):
        raise ValueError(f"{len(rows)} results for {len(texts)} responses")
    results: list[Scores] = []
    for number, (row, text) in enumerate(zip(rows, texts)):
        try:
            if row is not None:
                row = [span.within(text) for span in read(list[SpanScore], row)]
            results.append(row)
        except RowError as error:
            raise ValueError(f"a wrong result for response {number}: {error}") from None
    return results


def _shown(value: Any) -> str:
    return shorten(repr(value), 80)
