"""The default format of feedback files. templates/rows.js is the same for the browser.

    {"id": "7", "prompt": "...", "response": "...", "responses": ["...", "..."],
     "spans": [{"start": 0, "end": 12, "label": "Insult"}], "preferences": [1]}

  context      sources, each [title, sentence, ...]    if the schema has a context
  references   [reference output, ...]                 if the item has any
  response     the first output, in which spans are marked
  responses    all outputs, first the `response`       if there are several
  spans        errors, with the `evidence` that their type needs, a `severity` if it was chosen, and
               `"side": "source"` if they are marked in the prompt, and a `reason` if one was given;
               and liked spans, whose labels are positive kinds of the schema
  other_spans  for each other output a list as `spans`  if the schema has `mark_outputs`
  missing      missing information, with its evidence  if the schema has `missing`
  correction   the corrected response                  if the schema has `correction`
  comment      the annotator's comment on the spans    if there is one
  preferences  1, 2 or 0 for each pair of outputs      if the outputs were compared; also read: a
               [better, worse] for each pair, as comparisons have it
  ratings      {scale: value} for each output          if the outputs were rated

The prompt is a text, or a conversation [{role, content}, ...].

`fgrlhf.data.formats` reads these rows directly, as spans and as comparisons. Other keys of a row
are kept.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError
from fgrlhf.base.records import BLANK, Complaint, Text, complaints, is_whole, key_problems, not_a
from fgrlhf.data.places import Source
from fgrlhf.segmentation import sentences
from fgrlhf.text_types import Prompt
from interface_html.conversations import (
    conversation_problems,
    prompt_value,
    title_messages,
    title_of,
)
from interface_html.format import (
    FEEDBACK_KEYS,
    FURTHER_REFERENCES,
    ITEM_KEYS,
    RATINGS,
    BlankItemError,
    Item,
    ItemError,
    PromptReferences,
    read_rows,
)
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
    output_side,
    preference_problems,
)
from interface_html.schema import MOST_OUTPUTS, Schema
from interface_html.suggestions import decision_problems

OTHER_SPANS = "other_spans"
JUDGEMENTS = ("spans", OTHER_SPANS, "missing", "correction", "preferences", "ratings")
OTHER_RESPONSE = (
    "is not the first of `responses`, in which the pages mark spans: put it there, or rename it if"
    " the spans are in another text"
)
# The names of a document's fields in a row, for messages.
ERROR_PLACE = re.compile(r"feedback\.errors\[(\d+)\]")
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

    def references(self, path: str | Path) -> Sequence[PromptReferences]:
        references = []
        for number, row in enumerate(read_rows(path)):
            texts = row.get("references") if isinstance(row, dict) else None
            if texts is None or not _is_text_list(texts):
                raise UserError(f"{path}, row {number}: `references` must be an array of strings")
            text = self.prompt_text(row)
            if not text:
                raise UserError(f"{path}, row {number}: `prompt` must be a text or a conversation")
            name = row.get("id")
            references.append(PromptReferences(None if name is None else str(name), text, texts))
        return references

    def prompt_text(self, row: Mapping[str, Any]) -> str:
        prompt = row.get("prompt")
        if isinstance(prompt, list) and any(conversation_problems(row)):
            return ""
        text, _ = title_of(prompt)
        return text if isinstance(text, str) else ""

    def item_row(
        self, schema: Schema, row: Mapping[str, Any], references: Sequence[str]
    ) -> dict[str, Any]:
        complaints = [*_texts_problems(schema, row), *_name_problems(schema, row)]
        if schema.mark_outputs and "spans" in row:
            complaints += _other_spans_problems(schema, row)
        if complaints:
            raise (
                BlankItemError(complaints) if _is_blank(row, complaints) else ItemError(complaints)
            )
        fields = schema.fields
        title, messages = title_of(row["prompt"])
        texts = {fields.title: title, **dict(zip(fields.outputs, _outputs(row)))}
        if fields.context:
            texts[fields.context.key] = row.get("context")
        further: Sequence[str] = ()
        if fields.reference:
            first, *further = _references_to_show(row, references)
            texts[fields.reference.key] = first
        item = {key: texts[key] for key in schema.row}
        item |= {key: row[key] for key in row if key not in _row_keys(schema)}
        item |= messages
        if further:
            item[FURTHER_REFERENCES] = further
        if "spans" in row:
            item["feedback"] = _document(schema, row)
        if "preferences" in row:
            item["preference"] = _values_of_pairs(schema, row["preferences"])
        if schema.ratings and "ratings" in row:
            item[RATINGS] = ratings_of_row(schema, row["ratings"])
        return item

    def feedback_problems(self, schema: Schema, row: Mapping[str, Any]) -> Iterator[Complaint]:
        if "feedback" in row:
            feedback = row["feedback"]
            doc = {**feedback, "no-error": count_errors(schema, feedback) == 0}
            complaints = annotation_problems(schema, row, doc) + decision_problems(row, doc)
            for field, reason in complaints:
                yield _row_field(schema, feedback, field), reason
        if "preference" in row:
            wrong = key_problems(row, "", {"preference": list})
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
        references = _references(schema, item.row)
        if any(text.strip() for text in references):
            row["references"] = references
        row["response"] = outputs[0]
        if len(outputs) > 1:
            row["responses"] = outputs
        if item.feedback is not None:
            spans = _spans_of_outputs(schema, item.feedback["errors"])
            row["spans"] = spans[0]
            if schema.mark_outputs:
                row[OTHER_SPANS] = spans[1:]
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
        return row | _other_values(schema, item.row)

    def prompt(self, schema: Schema, item: Item) -> Prompt:
        """As `fgrlhf.data.formats.read_prompts` reads the item's row."""
        messages = title_messages(schema, item.row)
        meta = _other_values(schema, item.row)
        if schema.fields.context:
            meta["context"] = item.row[schema.fields.context.key]
        turns = tuple((turn["role"], turn["content"]) for turn in messages.get("messages", ()))
        return Prompt(item.id, item.row[schema.fields.title], meta=meta, messages=turns)

    def segment_labels(
        self, schema: Schema, item: Item, annotations: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Sequence[Sequence[str]]]:
        """The first label in each sentence; "none" if nothing in it is marked."""
        errors = [errors_only(schema, doc) for doc in annotations]
        segments = []
        for index, key in enumerate(schema.marked_outputs):
            text = item.row[key]
            labels = [character_labels(text, doc, output_side(index)) for doc in errors]
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
    if schema.mark_outputs:
        keys.append(OTHER_SPANS)
    return keys


def _item_keys(schema: Schema) -> list[str]:
    """The keys of an `Item.row` to which this format gives a meaning."""
    keys = [*schema.row, *FEEDBACK_KEYS]
    if schema.fields.reference:
        keys.append(FURTHER_REFERENCES)
    return keys


def _references_to_show(row: Mapping[str, Any], known: Sequence[str]) -> Sequence[str]:
    """The references in a row, unless they are blank and those of its prompt are known.

    There is at least one; it is blank if there is no reference.
    """
    own = row.get("references") or [""]
    return known if known and not any(text.strip() for text in own) else own


def _texts_problems(schema: Schema, row: Mapping[str, Any]) -> Iterator[Complaint]:
    if isinstance(row.get("prompt"), list):
        yield from conversation_problems(row)
    else:
        yield from key_problems(row, "", {"prompt": Text})
    outputs = _outputs(row)
    count = len(schema.fields.outputs)
    if not isinstance(outputs, list):
        yield "responses", not_a(list, outputs)
    elif len(outputs) != count:
        yield "responses", _count_reason(len(outputs), count)
    else:
        yield from complaints(list[Text], outputs, "responses")
        if "response" in row and row["response"] != outputs[0]:
            yield "response", OTHER_RESPONSE
    if schema.fields.context:
        yield from key_problems(row, "", {"context": list[Source]})
    if schema.fields.reference and "references" in row and not _is_text_list(row["references"]):
        yield "references", "must be an array of strings"
    if schema.ratings and "ratings" in row:
        yield from row_shape_problems(schema, row["ratings"])


def _count_reason(given: int, needed: int) -> str:
    """Why a row with another number of responses than the schema has outputs is no item."""
    ways_out = [f"sample {needed} per prompt (`fgrlhf generate` with num_samples={needed})"]
    if 0 < given <= MOST_OUTPUTS:
        ways_out.append(f"list {given} outputs in `fields.outputs` of the task's schema.js")
    return f"has {given} entries, must have {needed}: {', or '.join(ways_out)}"


def _name_problems(schema: Schema, row: Mapping[str, Any]) -> Iterator[Complaint]:
    """Other keys of a row that have the name of one of the item's texts."""
    for key in row:
        if key not in _row_keys(schema) and key in _item_keys(schema):
            yield key, "is a key that the pages of this task use for something else: rename it"
    if "comment" in row and "spans" not in row and "comment" in _row_keys(schema):
        yield "comment", "is a comment on `spans`, which are missing: rename or remove it"
    if schema.mark_outputs and OTHER_SPANS in row and "spans" not in row:
        yield OTHER_SPANS, "needs `spans`, the marks in the first output: [] if there are none"


def _other_spans_problems(schema: Schema, row: Mapping[str, Any]) -> Iterator[Complaint]:
    """Rows with `spans` have a list of spans for each other output, also if it is empty."""
    wrong = key_problems(row, "", {OTHER_SPANS: list})
    yield from wrong
    if wrong:
        return
    count = len(schema.fields.outputs) - 1
    if len(row[OTHER_SPANS]) != count:
        reason = f"has {len(row[OTHER_SPANS])} entries, must have {count}: one for each output"
        yield OTHER_SPANS, f"{reason} after the first"
    for k, spans in enumerate(row[OTHER_SPANS]):
        if not isinstance(spans, list):
            yield f"{OTHER_SPANS}[{k}]", not_a(list, spans)
            continue
        for i, span in enumerate(spans):
            if not isinstance(span, dict):
                yield f"{OTHER_SPANS}[{k}][{i}]", not_a(dict, span)
            elif "side" in span:
                yield f"{OTHER_SPANS}[{k}][{i}].side", "is not known: put the span into `spans`"
    lists = {"spans": row["spans"]} | {
        f"{OTHER_SPANS}[{k}]": spans for k, spans in enumerate(row[OTHER_SPANS])
    }
    for name, spans in lists.items():
        for i, span in enumerate(spans if isinstance(spans, list) else []):
            if isinstance(span, dict) and "output" in span:
                yield f"{name}[{i}].output", "is not known: the list says which output it is"


def _is_blank(row: Mapping[str, Any], complaints: Sequence[Complaint]) -> bool:
    """Whether a row without judgements is no item only because some of its outputs are blank."""
    is_judged = any(key in row for key in JUDGEMENTS)
    return not is_judged and all(
        field.startswith("responses[") and reason == BLANK for field, reason in complaints
    )


def _outputs(row: Mapping[str, Any]) -> Any:
    """The texts to judge: all `responses`, or the single `response`."""
    if "responses" not in row and "response" in row:
        return [row["response"]]
    return row.get("responses")


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _document(schema: Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """The annotation in a row; `feedback_problems` checks it."""
    spans, missing = row["spans"], row.get("missing", [])
    if isinstance(spans, list):
        spans = [_error(span) for span in spans]
        if schema.mark_outputs:
            for index, others in enumerate(row[OTHER_SPANS], start=1):
                spans += [_in_output(_error(span), index) for span in others]
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


def _values_of_pairs(schema: Schema, preferences: Any) -> Any:
    """The values for [[better, worse], ...], if they decide each pair; others are unchanged."""
    if not isinstance(preferences, list) or len(preferences) != len(schema.pairs):
        return preferences
    values = []
    for i, j in schema.pairs:
        if [i, j] in preferences:
            values.append(1)
        elif [j, i] in preferences:
            values.append(2)
    return values if len(values) == len(preferences) else preferences


def _error(span: Any) -> Any:
    if not isinstance(span, dict):
        return span
    renamed = {"error type": span.get("label"), "explanation": span.get("evidence", "")}
    return renamed | {key: span[key] for key in span if key not in ("label", "evidence")}


def _in_output(error: Any, index: int) -> Any:
    return {**error, "output": index} if isinstance(error, dict) else error


def _info(info: Any) -> Any:
    if not isinstance(info, dict):
        return info
    return {"error type": info.get("label")} | {key: info[key] for key in info if key != "label"}


def _row_field(schema: Schema, feedback: Mapping[str, Any], field: str) -> str:
    """The place of a problem in the row: `spans[0].label` for `feedback.errors[0].error type`."""
    match = ERROR_PLACE.match(field)
    if match:
        index = int(match[1])
        place = f"spans[{index}]"
        if schema.mark_outputs:
            place = _span_place(feedback["errors"], index)
        field = place + field[match.end() :]
    for name, row_name in ROW_NAMES.items():
        field = field.replace(name, row_name)
    return field


def _span_place(errors: Sequence[Any], index: int) -> str:
    """The place in a row of an error of the annotation."""
    outputs = [_output_of(error) for error in errors]
    output = outputs[index]
    place = f"{OTHER_SPANS}[{output - 1}]" if output else "spans"
    return f"{place}[{outputs[:index].count(output)}]"


def _output_of(error: Any) -> int:
    output = error.get("output", 0) if isinstance(error, dict) else 0
    return output if is_whole(output) else 0


# ---- to a file -----------------------------------------------------------------------------------


def _references(schema: Schema, row: Mapping[str, Any]) -> list[str]:
    """All references of an `Item.row`; [] if the task has none."""
    reference = schema.fields.reference
    if not reference:
        return []
    return [row[reference.key], *row.get(FURTHER_REFERENCES, ())]


def _other_values(schema: Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an `Item.row` to which neither this format nor an item gives a meaning."""
    used = {*_item_keys(schema), *ITEM_KEYS, *title_messages(schema, row)}
    return {key: value for key, value in row.items() if key not in used}


def _spans_of_outputs(schema: Schema, errors: Sequence[Mapping[str, Any]]) -> list[list]:
    """The spans in each output in which errors are marked; with the first those in the source."""
    spans: list[list] = [[] for _ in schema.marked_outputs]
    for error in errors:
        spans[error.get("output", 0)].append(_span(schema, error))
    return spans


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
