"""The default format of feedback files. templates/rows.js is the same for the browser.

    {"id": "7", "prompt": "...", "response": "...", "responses": ["...", "..."],
     "spans": [{"start": 0, "end": 12, "label": "Insult"}], "preferences": [1]}

  context      sources, each [title, sentence, ...]    if the schema has a context
  references   [reference output]                      if the schema has a reference
  response     the first output, in which spans are marked
  responses    all outputs                             if there are several
  spans        errors, with the `evidence` that their type needs, a `severity` if it was chosen, and
               `"side": "source"` if they are marked in the prompt, and a `reason` if one was given;
               and liked spans, whose labels are positive kinds of the schema
  missing      missing information, with its evidence  if the schema has `missing`
  correction   the corrected response                  if the schema has `correction`
  comment      the annotator's comment on the spans    if there is one
  preferences  1, 2 or 0 for each pair of outputs      if the outputs were compared
  ratings      {scale: value} for each output          if the outputs were rated

The prompt is a text, or a conversation [{role, content}, ...].

`fgrlhf.data.formats` reads these rows directly, as spans and as comparisons. Other keys of a row
are kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fgrlhf.data.problems import (
    Complaint,
    filled_value_problems,
    key_problems,
    list_problems,
    not_a,
    source_list_problems,
    text_problems,
)
from fgrlhf.errors import UserError
from fgrlhf.text_types import Prompt
from interface_html.conversations import (
    conversation_problems,
    prompt_value,
    title_messages,
    title_of,
)
from interface_html.format import FEEDBACK_KEYS, ITEM_KEYS, RATINGS, Item, ItemError, read_rows
from interface_html.ratings import (
    ratings_of_row,
    row_field,
    row_of_ratings,
    row_shape_problems,
    values_problems,
)
from interface_html.rules import (
    annotation_problems,
    character_labels,
    comment_keys,
    count_errors,
    errors_only,
    preference_problems,
    sentences,
)
from interface_html.schema import Schema
from interface_html.suggestions import decision_problems

# The names of a document's fields in a row, for messages.
ROW_NAMES = {
    "feedback.errors": "spans",
    "feedback.missing-info": "missing",
    "feedback.corrected-prediction": "correction",
    ".error type": ".label",
    ".explanation": ".evidence",
}


class RowFormat:
    """The format of tasks without a format of their own."""

    def read(self, path: str | Path) -> list[Any]:
        return read_rows(path)

    def references(self, path: str | Path) -> Mapping[str, str]:
        references = {}
        for number, row in enumerate(read_rows(path)):
            texts = row.get("references") if isinstance(row, dict) else None
            if texts is None or not _is_text_list(texts):
                raise UserError(f"{path}, row {number}: `references` must be an array of strings")
            references[str(row.get("id", number))] = texts[0]
        return references

    def item_row(self, schema: Schema, row: Mapping[str, Any], reference: str) -> dict[str, Any]:
        complaints = [*_texts_problems(schema, row), *_name_problems(schema, row)]
        if complaints:
            raise ItemError(complaints)
        fields = schema.fields
        title, messages = title_of(row["prompt"])
        texts = {fields.title: title, **dict(zip(fields.outputs, _outputs(row)))}
        if fields.context:
            texts[fields.context.key] = row.get("context")
        if fields.reference:
            texts[fields.reference.key] = row.get("references", [reference])[0]
        item = {key: texts[key] for key in schema.row}
        item |= {key: row[key] for key in row if key not in _row_keys(schema)}
        item |= messages
        if "spans" in row:
            item["feedback"] = _document(schema, row)
        if "preferences" in row:
            item["preference"] = row["preferences"]
        if schema.ratings and "ratings" in row:
            item[RATINGS] = ratings_of_row(schema, row["ratings"])
        return item

    def feedback_problems(self, schema: Schema, row: Mapping[str, Any]) -> Iterator[Complaint]:
        if "feedback" in row:
            feedback = row["feedback"]
            doc = {**feedback, "no-error": count_errors(schema, feedback) == 0}
            complaints = annotation_problems(schema, row, doc) + decision_problems(row, doc)
            for field, reason in complaints:
                yield _row_field(field), reason
        if "preference" in row:
            wrong = key_problems(row, "", "preference", list)
            for field, reason in wrong or preference_problems(schema, row["preference"]):
                yield field.replace("preference", "preferences"), reason
        if RATINGS in row:
            for field, reason in values_problems(schema, row[RATINGS]):
                yield row_field(schema, field), reason

    def feedback_row(self, schema: Schema, item: Item) -> dict[str, Any]:
        fields = schema.fields
        outputs = [item.row[key] for key in fields.outputs]
        row: dict[str, Any] = {"id": item.id, "prompt": prompt_value(schema, item.row)}
        if fields.context:
            row["context"] = item.row[fields.context.key]
        if fields.reference:
            row["references"] = [item.row[fields.reference.key]]
        row["response"] = outputs[0]
        if len(outputs) > 1:
            row["responses"] = outputs
        if item.feedback is not None:
            row["spans"] = [_span(schema, error) for error in item.feedback["errors"]]
            if schema.missing:
                row["missing"] = [_labelled(info) for info in item.feedback["missing-info"]]
            if schema.correction:
                row["correction"] = item.feedback["corrected-prediction"]
            if "comment" in item.feedback:
                row["comment"] = item.feedback["comment"]
        if item.preference is not None:
            row["preferences"] = list(item.preference)
        if item.ratings is not None:
            row["ratings"] = row_of_ratings(schema, item.ratings)
        messages = title_messages(schema, item.row)
        own_keys = {*schema.row, *FEEDBACK_KEYS, *ITEM_KEYS, *messages}
        return row | {key: value for key, value in item.row.items() if key not in own_keys}

    def prompt(self, schema: Schema, item: Item) -> Prompt:
        """As `fgrlhf.data.formats.read_prompts` reads the item's row."""
        messages = title_messages(schema, item.row)
        own_keys = {*schema.row, *FEEDBACK_KEYS, *ITEM_KEYS, *messages}
        meta = {key: value for key, value in item.row.items() if key not in own_keys}
        if schema.fields.context:
            meta["context"] = item.row[schema.fields.context.key]
        turns = tuple((turn["role"], turn["content"]) for turn in messages.get("messages", ()))
        return Prompt(item.id, item.row[schema.fields.title], meta=meta, messages=turns)

    def segment_labels(
        self, schema: Schema, item: Item, annotations: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Sequence[Sequence[str]]]:
        """The first label in each sentence; "none" if nothing in it is marked."""
        text = item.row[schema.text]
        labels = [character_labels(text, errors_only(schema, doc)) for doc in annotations]
        segments = []
        for start, end in sentences(text):
            segments.append([_first_label(characters[start:end]) for characters in labels])
        return {"sentences": segments}


# ---- from a file ---------------------------------------------------------------------------------


def _row_keys(schema: Schema) -> list[str]:
    """The keys that this format uses, for a task with this schema."""
    keys = ["id", "prompt", "response", "responses", "spans", "missing", "correction"]
    keys += ["preferences", *comment_keys(schema)]
    if schema.fields.context:
        keys.append("context")
    if schema.fields.reference:
        keys.append("references")
    if schema.ratings:
        keys.append("ratings")
    return keys


def _texts_problems(schema: Schema, row: Mapping[str, Any]) -> Iterator[Complaint]:
    if isinstance(row.get("prompt"), list):
        yield from conversation_problems(row)
    else:
        yield from text_problems(row, "", "prompt")
    outputs = _outputs(row)
    count = len(schema.fields.outputs)
    if not isinstance(outputs, list):
        yield "responses", not_a(list, outputs)
    elif len(outputs) != count:
        yield "responses", f"has {len(outputs)} entries, must have {count}"
    else:
        yield from list_problems(outputs, "responses", filled_value_problems)
    if schema.fields.context:
        yield from source_list_problems(row, "context")
    if schema.fields.reference and "references" in row and not _is_text_list(row["references"]):
        yield "references", "must be an array of strings"
    if schema.ratings and "ratings" in row:
        yield from row_shape_problems(schema, row["ratings"])


def _name_problems(schema: Schema, row: Mapping[str, Any]) -> Iterator[Complaint]:
    """Other keys of a row that have the name of one of the item's texts."""
    for key in row:
        if key not in _row_keys(schema) and key in (*schema.row, *FEEDBACK_KEYS):
            yield key, "is a key that the pages of this task use for something else: rename it"
    if "comment" in row and "spans" not in row and "comment" in _row_keys(schema):
        yield "comment", "is a comment on `spans`, which are missing: rename or remove it"


def _outputs(row: Mapping[str, Any]) -> Any:
    """The texts to judge: all `responses`, or the single `response`."""
    if "responses" not in row and "response" in row:
        return [row["response"]]
    return row.get("responses")


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def _document(schema: Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """The annotation in a row; `feedback_problems` checks it."""
    spans, missing = row["spans"], row.get("missing", [])
    if isinstance(spans, list):
        spans = [_error(span) for span in spans]
    if isinstance(missing, list):
        missing = [_info(info) for info in missing]
    doc = {
        "errors": spans,
        "missing-info": missing,
        "corrected-prediction": row.get("correction", ""),
    }
    if schema.comment == "optional" and "comment" in row:
        doc["comment"] = row["comment"]
    return doc


def _error(span: Any) -> Any:
    if not isinstance(span, dict):
        return span
    renamed = {"error type": span.get("label"), "explanation": span.get("evidence", "")}
    return renamed | {key: span[key] for key in span if key not in ("label", "evidence")}


def _info(info: Any) -> Any:
    if not isinstance(info, dict):
        return info
    return {"error type": info.get("label")} | {key: info[key] for key in info if key != "label"}


def _row_field(field: str) -> str:
    """The place of a problem in the row: `spans[0].label` for `feedback.errors[0].error type`."""
    for name, row_name in ROW_NAMES.items():
        field = field.replace(name, row_name)
    return field


# ---- to a file -----------------------------------------------------------------------------------


def _span(schema: Schema, error: Mapping[str, Any]) -> dict[str, Any]:
    span = {"start": error["start"], "end": error["end"], "label": error["error type"]}
    if schema.error_type(error["error type"]).needs != "nothing":
        span["evidence"] = error["explanation"]
    for key in ("severity", "side", "reason"):
        if key in error:
            span[key] = error[key]
    return span


def _labelled(info: Mapping[str, Any]) -> dict[str, Any]:
    ids = {key: value for key, value in info.items() if key != "error type"}
    return {"label": info["error type"], **ids}


def _first_label(labels: Iterable[str | None]) -> str:
    return next((label for label in labels if label), "none")
