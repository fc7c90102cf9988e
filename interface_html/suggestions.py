"""The rules of suggested errors, which annotators accept, change or reject.

templates/suggestions.js has the same rules for the browser.

The row of an item may have
  suggestions        [{type, start, end, explanation, score, source}]: `type` is the name of a kind
                     of error, the offsets count code points of the text to annotate, `score` is
                     from 0 to 1, and `source` names the model or the file. If the schema has
                     `mark_outputs`, a suggestion in another output than the first has `output`, its
                     index, and its offsets are those of that output
  suggestions_shown  false: the page hides them, so that their influence can be measured

The annotation of an item with shown suggestions has
  errors[i].origin   {index, source, score, verdict} if a suggestion became this error: `accepted`
                     if kind and span are the suggested ones, else `changed`
  suggestions        [{index, verdict: rejected}]

Feedback rows have none of these keys.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fgrlhf.base.errors import counted
from fgrlhf.base.records import (
    AnyText,
    Complaint,
    Text,
    is_whole,
    key_problems,
    not_a,
    one_of,
    shown,
    unknown_key_problems,
)
from fgrlhf.data.places import span_problems
from fgrlhf.segmentation import sentences
from interface_html.rules import output_problems, side_of
from interface_html.schema import Schema

LIST, SHOWN = "suggestions", "suggestions_shown"
OUTPUT = "output"
KEYS = ("type", "start", "end", "explanation", "score", "source")
ORIGIN_KEYS = ("index", "source", "score", "verdict")
ACCEPTED, CHANGED, REJECTED = "accepted", "changed", "rejected"


# ---- in an item ----------------------------------------------------------------------------------


def item_suggestion_problems(schema: Schema, row: Mapping[str, Any]) -> list[Complaint]:
    """The problems of an item's suggestions. The texts to annotate must be valid."""
    if LIST not in row:
        return [(SHOWN, f"is set, but there are no `{LIST}`")] if SHOWN in row else []
    complaints = key_problems(row, "", {LIST: list})
    if SHOWN in row:
        complaints += key_problems(row, "", {SHOWN: bool})
    if complaints:
        return complaints
    first_index: dict[tuple, int] = {}
    for i, suggestion in enumerate(row[LIST]):
        field = f"{LIST}[{i}]"
        wrong = list(_suggestion(schema, suggestion, row, field))
        complaints += wrong
        if wrong:
            continue
        place = (side_of(suggestion), suggestion["start"], suggestion["end"])
        content = (suggestion["type"], *place)
        if content in first_index:
            complaints.append((field, f"repeats {LIST}[{first_index[content]}]"))
        first_index.setdefault(content, i)
    return complaints


def _suggestion(
    schema: Schema, suggestion: Any, row: Mapping[str, Any], field: str
) -> Iterator[Complaint]:
    if not isinstance(suggestion, dict):
        yield field, not_a(dict, suggestion)
        return
    prefix = f"{field}."
    keys = (*KEYS, OUTPUT) if schema.mark_outputs else KEYS
    yield from unknown_key_problems(suggestion, prefix, keys)
    kinds = {"type": one_of(schema.response_kinds), "explanation": AnyText, "source": Text}
    yield from key_problems(suggestion, prefix, kinds)
    if "score" not in suggestion:
        yield f"{prefix}score", "missing"
    elif not _is_probability(suggestion["score"]):
        yield f"{prefix}score", f"{shown(suggestion['score'])} is not a number from 0 to 1"
    wrong = key_problems(suggestion, prefix, {"start": int, "end": int})
    if schema.mark_outputs and OUTPUT in suggestion:
        wrong += output_problems(schema, suggestion[OUTPUT], field)
    if not wrong and (schema.mark_outputs or OUTPUT not in suggestion):
        wrong = list(_units(schema, suggestion, row, field))
    yield from wrong


def _is_probability(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value <= 1


def _units(
    schema: Schema, suggestion: Mapping[str, Any], row: Mapping[str, Any], field: str
) -> Iterator[Complaint]:
    """A span must be of whole words, or of whole sentences, of the text that it is in."""
    start, end = suggestion["start"], suggestion["end"]
    key = schema.side_key(side_of(suggestion))
    text = row[key]
    wrong = list(span_problems(start, end, text, field, key))
    yield from wrong
    if wrong or schema.unit == "word":
        return
    bounds = sentences(text)
    if start not in {first for first, _ in bounds}:
        yield f"{field}.start", f"{start} is not the start of a sentence"
    if end not in {last for _, last in bounds}:
        yield f"{field}.end", f"{end} is not the end of a sentence"


def shown_suggestions(row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The suggestions that the page shows."""
    return row.get(LIST, []) if row.get(SHOWN, True) else []


# ---- in an annotation ----------------------------------------------------------------------------


def decision_problems(row: Mapping[str, Any], doc: Mapping[str, Any]) -> list[Complaint]:
    """Decisions of the annotation `doc` that do not fit the suggestions of the item `row`.

    `doc` may have any values; `annotation_problems` checks the rest of it.
    """
    suggestions = shown_suggestions(row)
    decided: dict[int, str] = {}
    complaints: list[Complaint] = []
    for i, error in enumerate(_entries(doc, "errors")):
        if isinstance(error, dict) and "origin" in error:
            field = f"feedback.errors[{i}].origin"
            wrong = list(_decision(error["origin"], ORIGIN_KEYS, suggestions, decided, field))
            if not wrong:
                wrong = list(_origin(error, suggestions[error["origin"]["index"]], field))
            complaints += wrong
    if LIST in doc:
        complaints += key_problems(doc, "feedback.", {LIST: list})
    for i, rejection in enumerate(_entries(doc, LIST)):
        field = f"feedback.{LIST}[{i}]"
        wrong = list(_decision(rejection, ("index", "verdict"), suggestions, decided, field))
        if not wrong and rejection["verdict"] != REJECTED:
            wrong = [(f"{field}.verdict", f"{shown(rejection['verdict'])} is not {REJECTED}")]
        complaints += wrong
    return complaints


def _entries(doc: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = doc.get(key)
    return value if isinstance(value, list) else []


def _decision(
    decision: Any,
    keys: Sequence[str],
    suggestions: Sequence[Mapping[str, Any]],
    decided: dict[int, str],
    field: str,
) -> Iterator[Complaint]:
    """A decision must have these keys, and be the only one on a suggestion that was shown.

    `decided` has the place of the decision on each suggestion, by index; this one is added.
    """
    if not isinstance(decision, dict):
        yield field, not_a(dict, decision)
        return
    yield from unknown_key_problems(decision, f"{field}.", keys)
    for key in keys:
        if key not in decision:
            yield f"{field}.{key}", "missing"
    if "index" not in decision:
        return
    index = decision["index"]
    if not is_whole(index):
        yield f"{field}.index", not_a(int, index)
    elif not 0 <= index < len(suggestions):
        count = counted(len(suggestions), "suggestion")
        yield f"{field}.index", f"{shown(index)} does not exist: the page shows {count}"
    elif index in decided:
        yield f"{field}.index", f"suggestion {index} is also decided by {decided[index]}"
    else:
        decided[index] = field


def _origin(
    error: Mapping[str, Any], suggestion: Mapping[str, Any], field: str
) -> Iterator[Complaint]:
    """The origin must repeat its suggestion, with the verdict that follows from the error."""
    origin = error["origin"]
    if side_of(error) != side_of(suggestion):
        yield f"{field}.index", f"suggestion {origin['index']} is in another text"
    for key in ("source", "score"):
        if origin[key] != suggestion[key]:
            yield f"{field}.{key}", f"differs from the suggestion's, {shown(suggestion[key])}"
    verdict = ACCEPTED if _is_same(error, suggestion) else CHANGED
    if origin["verdict"] != verdict:
        yield f"{field}.verdict", f"{shown(origin['verdict'])} must be {verdict}"


def _is_same(error: Mapping[str, Any], suggestion: Mapping[str, Any]) -> bool:
    same_span = (error.get("start"), error.get("end")) == (suggestion["start"], suggestion["end"])
    return same_span and error.get("error type") == suggestion["type"]


def verdicts(row: Mapping[str, Any], doc: Mapping[str, Any]) -> list[str | None]:
    """The verdict on each shown suggestion; None if it is undecided. `doc` must be valid."""
    result: list[str | None] = [None] * len(shown_suggestions(row))
    for error in doc["errors"]:
        if "origin" in error:
            result[error["origin"]["index"]] = error["origin"]["verdict"]
    for rejection in doc.get(LIST, []):
        result[rejection["index"]] = rejection["verdict"]
    return result


def undecided_problems(row: Mapping[str, Any], doc: Mapping[str, Any]) -> list[Complaint]:
    """The suggestions without a decision. `doc` must be valid."""
    complaints: list[Complaint] = []
    for i, verdict in enumerate(verdicts(row, doc)):
        if verdict is None:
            reason = "is not decided: accept, change or reject it"
            complaints.append((f"feedback.{LIST}[{i}]", reason))
    return complaints


def decisions_record(row: Mapping[str, Any], doc: Mapping[str, Any]) -> dict[str, Any] | None:
    """`{shown, verdicts}` of an annotation, for the record; None for items without suggestions."""
    if LIST not in row:
        return None
    return {"shown": row.get(SHOWN, True), "verdicts": verdicts(row, doc)}


def without_decisions(doc: Mapping[str, Any]) -> dict[str, Any]:
    """An annotation without the keys of this module, for the row of a feedback file."""
    rest = {key: value for key, value in doc.items() if key != LIST}
    rest["errors"] = []
    for error in doc["errors"]:
        rest["errors"].append({key: value for key, value in error.items() if key != "origin"})
    return rest
