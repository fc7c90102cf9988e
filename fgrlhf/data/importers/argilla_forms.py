"""The forms of an Argilla record, all as the nested form of Argilla 2.

    nested          `fields`, `metadata`, `responses: {QUERY: [{value, user_id, status}]}` and
                    `suggestions: {QUERY: {value, agent}}`
    flattened       `QUERY.responses`, `.responses.users`, `.responses.status`, `QUERY.suggestion`
    1               `responses: [{user_id, status, values: {QUERY: {value}}}]` and
                    `suggestions: [{..._name, value, agent}]`
    1, flattened    `QUERY: [{user_id, value, status}]`, `QUERY-suggestion` and
                    `QUERY-suggestion-metadata`, as Argilla 1 pushed data sets to the hub

The older records of Argilla 1 and before, with one `annotation`, are refused by name.
"""

import json
from collections.abc import Mapping
from typing import Any

from fgrlhf.base.records import RowError, check_list, check_object, check_text

RESPONSES = ".responses"
SUGGESTION = ".suggestion"
FLAT_ENDS = tuple(
    [f"{RESPONSES}.{part}" for part in ("users", "status")]
    + [f"{SUGGESTION}.{part}" for part in ("agent", "score")]
)
OWN_KEYS = ("id", "status", "_server_id")
SUGGESTION_1 = "-suggestion"
METADATA_1 = "-suggestion-metadata"
NAME_1 = "question_name"  # a task's word: Argilla's key of a query's name
OWN_KEYS_1 = ("external_id", "metadata")
ANSWER_KEYS_1 = ("user_id", "value", "status")
FIELDS = ("response", "text", "prompt", "source")
LEGACY_KEYS = ("annotation", "annotation_agent", "prediction_agent")

Row = Mapping[str, Any]


def nested(row: Row) -> Row:
    """A record in the nested form of Argilla 2.

    Raises:
      RowError: it is in none of the forms.
    """
    if "fields" in row:
        is_first = isinstance(row.get("responses"), list) or isinstance(
            row.get("suggestions"), list
        )
        return _of_version_1(row) if is_first else row
    if any(key.endswith((RESPONSES, SUGGESTION)) for key in row):
        return _of_flattened(row)
    if any(key.endswith(METADATA_1) for key in row):
        return _of_flattened_1(row)
    if any(key in row for key in LEGACY_KEYS):
        raise RowError(
            "annotation",
            "belongs to records from before Argilla 1's feedback data sets. Migrate the data set"
            " (docs.argilla.io, `Migrate your legacy datasets to Argilla V2`) and export it again",
        )
    raise RowError(
        "fields",
        f"missing, and no key ends in `{RESPONSES}` or `{SUGGESTION}`: this is no record of"
        " Argilla",
    )


def _of_flattened(row: Row) -> Row:
    """Texts and chats under `response`, `text`, `prompt` and `source` are the fields, else all."""
    fields: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    responses: dict[str, list[dict[str, Any]]] = {}
    suggestions: dict[str, Any] = {}
    for key, value in row.items():
        query, dot, rest = key.rpartition(RESPONSES)
        if dot and not rest and query:
            responses[query] = _flat_answers(row, key)
        elif key.endswith(SUGGESTION) and key != SUGGESTION:
            if value is not None:
                agent = {"agent": row.get(f"{key}.agent"), "score": row.get(f"{key}.score")}
                suggestions[key.removesuffix(SUGGESTION)] = {"value": value, **agent}
        elif key in FIELDS:
            fields[key] = value
        elif value is not None and not key.endswith(FLAT_ENDS) and key not in OWN_KEYS:
            metadata[key] = value
    if not any(key in fields for key in FIELDS[:2]):
        texts = [
            key for key, value in metadata.items() if isinstance(value, str) or _is_chat(value)
        ]
        fields |= {key: metadata.pop(key) for key in texts}
    own = {key: row.get(key) for key in ("id", "status")}
    records = {"fields": fields, "metadata": metadata}
    return {**own, **records, "responses": responses, "suggestions": suggestions}


def _is_chat(value: Any) -> bool:
    """Whether a value is a list of messages."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(message, Mapping) and "role" in message for message in value)


def _flat_answers(row: Row, key: str) -> list[dict[str, Any]]:
    """The answers to a query in a flattened record, with their users and status."""
    values = check_list(key, row[key] if row[key] is not None else [])
    columns = {}
    for part in ("users", "status"):
        column = check_list(f"{key}.{part}", row.get(f"{key}.{part}") or [None] * len(values))
        if len(column) != len(values):
            raise RowError(f"{key}.{part}", f"has {len(column)} values for {len(values)} answers")
        columns[part] = column
    answers = []
    for value, user, status in zip(values, columns["users"], columns["status"], strict=True):
        answers.append({"value": value, "user_id": user, "status": status})
    return answers


def _of_version_1(row: Row) -> Row:
    responses: dict[str, list[dict[str, Any]]] = {}
    for i, item in enumerate(check_list("responses", row.get("responses") or [])):
        answer = check_object(f"responses[{i}]", item)
        who = {"user_id": answer.get("user_id"), "status": answer.get("status")}
        values = check_object(f"responses[{i}].values", answer.get("values") or {})
        for query, value in values.items():
            given = check_object(f"responses[{i}].values.{query}", value)
            responses.setdefault(query, []).append({"value": given.get("value"), **who})
    suggestions = {}
    for i, item in enumerate(check_list("suggestions", row.get("suggestions") or [])):
        suggestion = check_object(f"suggestions[{i}]", item)
        name = check_text(f"suggestions[{i}].{NAME_1}", suggestion.get(NAME_1))
        suggestions[name] = suggestion
    own_id = row.get("external_id") if row.get("id") is None else row["id"]
    return {**row, "id": own_id, "responses": responses, "suggestions": suggestions}


def _of_flattened_1(row: Row) -> Row:
    """Every column that is no query and not Argilla's own is a field."""
    queries = [key.removesuffix(METADATA_1) for key in row if key.endswith(METADATA_1)]
    used = [*queries, *OWN_KEYS_1, *OWN_KEYS]
    used += [query + end for query in queries for end in (SUGGESTION_1, METADATA_1)]
    responses = {query: _answers_1(query, row.get(query)) for query in queries}
    suggestions = {}
    for query in queries:
        value = row.get(query + SUGGESTION_1)
        about = check_object(query + METADATA_1, row.get(query + METADATA_1) or {})
        if value is not None:
            suggestions[query] = {"value": value, **about}
    return {
        "id": row.get("external_id"),
        "fields": {
            key: value for key, value in row.items() if key not in used and value is not None
        },
        "metadata": _metadata_1(row.get("metadata")),
        "responses": responses,
        "suggestions": suggestions,
    }


def _answers_1(query: str, value: Any) -> list[Any]:
    """Answers `[{user_id, value, status}]`, which some files have as an object of three lists."""
    if not isinstance(value, Mapping):
        return check_list(query, value or [])
    columns = [check_list(f"{query}.{key}", value.get(key) or []) for key in ANSWER_KEYS_1]
    if len({len(column) for column in columns}) > 1:
        raise RowError(query, "has lists of different lengths")
    return [dict(zip(ANSWER_KEYS_1, parts, strict=True)) for parts in zip(*columns, strict=True)]


def _metadata_1(value: Any) -> Any:
    """Metadata, which Argilla 1 wrote as a text in JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return {"metadata": value}
