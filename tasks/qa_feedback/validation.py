"""What is wrong with rows of the qa-feedback format: every mistake as file, row, field and
reason.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fgrlhf.errors import shorten

FACTUAL_ERRORS = ("Wrong-Grounding", "Unverifiable")
NON_FACTUAL_ERRORS = ("Irrelevant", "Redundant", "Incoherent")
MINOR_INFO = "Missing-Minor-Auxiliary"
MISSING_INFO = ("Missing-Answer", "Missing-Major-Auxiliary", MINOR_INFO)

_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
}
Complaint = tuple[str, str]  # field, reason


@dataclass(frozen=True)
class Problem:
    """One mistake. `field` is a path such as `feedback.errors[2].end`.

    `row` counts from 0 in a file that is one JSON array. With `place="line"` it is a line of a JSON
    lines file, counted from 1.
    """

    file: str
    row: int
    field: str
    reason: str
    place: str = "row"

    def __str__(self) -> str:
        return f"{self.file}, {self.place} {self.row}, {self.field}: {self.reason}"


def feedback_problems(rows: Sequence[Any], file: str) -> list[Problem]:
    """Everything wrong with the rows of a feedback file, in order; [] if they can be used."""
    return [
        Problem(file, i, *complaint)
        for i, row in enumerate(rows)
        for complaint in _feedback_row(row)
    ]


def example_problems(rows: Sequence[Any], file: str) -> list[Problem]:
    """Everything wrong with the rows of {train,dev,test,train_1k}.json, in order; [] if they can be
    used.
    """
    return [
        Problem(file, i, *complaint)
        for i, row in enumerate(rows)
        for complaint in _example_row(row)
    ]


def sample_problems(rows: Sequence[Any], file: str, answers: int = 4) -> list[Problem]:
    """Everything wrong with the lines of a `samples.jsonl`, in order; [] if they can be used.

    Args:
      rows: what stands on the lines.
      file: the file's name, for the problems.
      answers: how many predictions each line must have.
    """
    problems: list[Problem] = []
    line_of_id: dict[str, int] = {}
    for line, row in enumerate(rows, 1):
        complaints = list(_sample_row(row, answers))
        name = row.get("id") if isinstance(row, dict) else None
        if isinstance(name, str):
            if name in line_of_id:
                complaints.append(("id", f"{shown(name)} is the id of line {line_of_id[name]} too"))
            line_of_id.setdefault(name, line)
        problems += [Problem(file, line, *complaint, place="line") for complaint in complaints]
    return problems


# ---- rows ----------------------------------------------------------------------------------------


def _feedback_row(row: Any) -> Iterator[Complaint]:
    if not isinstance(row, dict):
        yield "row", not_a(dict, row)
        return
    yield from filled_text_problems(row, "", "question")
    yield from text_problems(row, "", "gold", *(f"prediction {i}" for i in range(1, 5)))
    bad_passages = all_sentences_passages(row, "passages")
    yield from bad_passages
    passages = None if bad_passages else row["passages"]
    yield from key_problems(row, "", "feedback", dict)
    feedback = row.get("feedback")
    if isinstance(feedback, dict):
        yield from text_problems(feedback, "feedback.", "corrected-prediction")
        for key in ("errors", "missing-info"):
            yield from key_problems(feedback, "feedback.", key, list)
        if isinstance(feedback.get("errors"), list):
            yield from _errors(feedback["errors"], row.get("prediction 1"), passages)
        if isinstance(feedback.get("missing-info"), list):
            for i, info in enumerate(feedback["missing-info"]):
                yield from missing_problems(info, f"feedback.missing-info[{i}]", passages)
    yield from _preference(row)


def _example_row(row: Any) -> Iterator[Complaint]:
    if not isinstance(row, dict):
        yield "row", not_a(dict, row)
        return
    yield from filled_text_problems(row, "", "text", "question")
    yield from key_problems(row, "", "answer", list) or _all_items(
        row["answer"], "answer", _filled_text
    )
    if row.get("answer") == []:
        yield "answer", "is empty: at least one reference answer is needed"
    yield from key_problems(row, "", "passages", list) or _all_items(
        row["passages"], "passages", _any_passage
    )


def _sample_row(row: Any, answers: int) -> Iterator[Complaint]:
    if not isinstance(row, dict):
        yield "line", not_a(dict, row)
        return
    yield from filled_text_problems(row, "", "id", "question")
    yield from key_problems(row, "", "passages", list) or _all_items(
        row["passages"], "passages", _any_passage
    )
    yield from key_problems(row, "", "predictions", list) or _all_items(
        row["predictions"], "predictions", _text
    )
    predictions = row.get("predictions")
    if isinstance(predictions, list) and len(predictions) != answers:
        count = f"has {len(predictions)} entries, must have {answers}"
        yield "predictions", f"{count}: sample them with num_samples={answers}"


def _preference(row: Mapping[str, Any]) -> Iterator[Complaint]:
    yield from key_problems(row, "", "preference", list)
    preference = row.get("preference")
    if not isinstance(preference, list):
        return
    if len(preference) != 6:
        yield (
            "preference",
            f"has {len(preference)} entries, must have 6: outputs 1v2, 1v3, 1v4, 2v3, 2v4, 3v4",
        )
    for i, value in enumerate(preference):
        if not is_int(value) or value not in (0, 1, 2):
            yield (
                f"preference[{i}]",
                f"{shown(value)} is none of 0 (tie), 1 (first better), 2 (second better)",
            )


# ---- error spans and missing information ---------------------------------------------------------


def _errors(errors: list, text: Any, passages: list | None) -> Iterator[Complaint]:
    placed = []  # (start, end, index in the annotator's order)
    for i, error in enumerate(errors):
        field = f"feedback.errors[{i}]"
        if not isinstance(error, dict):
            yield field, not_a(dict, error)
            continue
        yield from type_problems(error, field, FACTUAL_ERRORS + NON_FACTUAL_ERRORS)
        yield from text_problems(error, f"{field}.", "explanation")
        if error.get("error type") == "Wrong-Grounding" and isinstance(
            error.get("explanation"), str
        ):
            yield from grounding_problems(error["explanation"], f"{field}.explanation", passages)
        wrong = key_problems(error, f"{field}.", "start", int) + key_problems(
            error, f"{field}.", "end", int
        )
        if not wrong and isinstance(text, str):
            wrong = list(span_problems(error["start"], error["end"], text, field))
            if not any("range" in reason for _, reason in wrong):
                placed.append((error["start"], error["end"], i))
        yield from wrong
    yield from overlap_problems(placed)


def span_problems(
    start: int, end: int, text: str, field: str, name: str = "prediction 1"
) -> Iterator[Complaint]:
    """A span of `name` holds whole words: it begins with one, and after it comes white space or the
    text's end.
    """
    if not 0 <= start < len(text):
        yield f"{field}.start", f"{shown(start)} is out of range: {name} has {len(text)} characters"
    if not 0 < end <= len(text):
        yield f"{field}.end", f"{shown(end)} is out of range: {name} has {len(text)} characters"
    elif end <= start:
        yield (
            f"{field}.end",
            (
                f"{shown(end)} is out of range: the span starts at {shown(start)} and must not be"
                " empty"
            ),
        )
    elif 0 <= start:
        if text[start].isspace() or (start > 0 and not text[start - 1].isspace()):
            yield f"{field}.start", f"{start} is off a word boundary: {_around(text, start)}"
        if end < len(text) and not text[end].isspace():
            yield f"{field}.end", f"{end} is off a word boundary: {_around(text, end)}"


def _around(text: str, at: int) -> str:
    return repr(f"{text[max(at - 10, 0) : at]}|{text[at : at + 10]}")


def overlap_problems(placed: list[tuple[int, int, int]]) -> Iterator[Complaint]:
    reach, last = 0, -1
    for start, end, i in sorted(placed):
        if start < reach:
            reason = f"the span [{start}, {end}) overlaps errors[{last}], which ends at {reach}"
            yield f"feedback.errors[{i}]", reason
        if end > reach:
            reach, last = end, i


def grounding_problems(explanation: str, field: str, passages: list | None) -> Iterator[Complaint]:
    """A Wrong-Grounding error's explanation: the sentences it contradicts as a JSON object, or free
    text.
    """
    if not explanation.startswith("{"):
        return
    try:
        ids = json.loads(explanation)
    except (ValueError, RecursionError):  # ValueError: no JSON, or a number of thousands of digits
        way_out = 'write {"passage_id":1,"sentence_id":[2]}'
        yield field, f"{shown(explanation)} is not valid JSON or is too large; {way_out}"
        return
    yield from id_problems(ids, field, passages)


def missing_problems(info: Any, field: str, passages: list | None) -> Iterator[Complaint]:
    if not isinstance(info, dict):
        yield field, not_a(dict, info)
        return
    yield from type_problems(info, field, MISSING_INFO)
    yield from id_problems(info, field, passages)


def id_problems(owner: Mapping[str, Any], field: str, passages: list | None) -> Iterator[Complaint]:
    """`passage_id` counts from 1; `sentence_id` lists sentences of that passage, 0 its title."""
    yield from key_problems(owner, f"{field}.", "passage_id", int)
    yield from key_problems(owner, f"{field}.", "sentence_id", list)
    passage_id, sentence_ids = owner.get("passage_id"), owner.get("sentence_id")
    passage = None
    if passages is not None and is_int(passage_id):
        if 1 <= passage_id <= len(passages):
            passage = passages[passage_id - 1]
        else:
            reason = (
                f"passage {shown(passage_id)} does not exist: the row has {len(passages)}, counted"
                " from 1"
            )
            yield f"{field}.passage_id", reason
    for i, sentence_id in enumerate(sentence_ids if isinstance(sentence_ids, list) else ()):
        if not is_int(sentence_id):
            yield f"{field}.sentence_id[{i}]", not_a(int, sentence_id)
        elif passage is not None and not 0 <= sentence_id < len(passage):
            known = f"passage {passage_id} has {len(passage) - 1}, and 0 for its title"
            yield (
                f"{field}.sentence_id[{i}]",
                f"sentence {shown(sentence_id)} does not exist: {known}",
            )


# ---- values --------------------------------------------------------------------------------------


def all_sentences_passages(row: Mapping[str, Any], key: str) -> list[Complaint]:
    """Whether `row[key]` is a list of passages, each a title and sentences."""
    return key_problems(row, "", key, list) or list(_all_items(row[key], key, _sentences_passage))


def _sentences_passage(passage: Any, field: str) -> Iterator[Complaint]:
    if not isinstance(passage, list):
        yield field, not_a(list, passage)
    elif not passage:
        yield field, "is empty: its first entry must be the title"
    else:
        yield from _all_items(passage, field, _text)


def _any_passage(passage: Any, field: str) -> Iterator[Complaint]:
    if isinstance(passage, dict):
        yield from text_problems(passage, f"{field}.", "wikipage", "content")
    else:
        yield from _sentences_passage(passage, field)


def _all_items(items: list, field: str, check) -> Iterator[Complaint]:
    for i, item in enumerate(items):
        yield from check(item, f"{field}[{i}]")


def type_problems(
    owner: Mapping[str, Any], field: str, known: tuple[str, ...]
) -> Iterator[Complaint]:
    missing = key_problems(owner, f"{field}.", "error type", str)
    yield from missing
    if not missing and owner["error type"] not in known:
        yield f"{field}.error type", f"{shown(owner['error type'])} is none of {', '.join(known)}"


def text_problems(owner: Mapping[str, Any], prefix: str, *keys: str) -> Iterator[Complaint]:
    for key in keys:
        yield from key_problems(owner, prefix, key, str) or _text(owner[key], f"{prefix}{key}")


def filled_text_problems(owner: Mapping[str, Any], prefix: str, *keys: str) -> Iterator[Complaint]:
    """As `text_problems`, for texts that must not be blank."""
    for key in keys:
        yield from key_problems(owner, prefix, key, str) or _filled_text(
            owner[key], f"{prefix}{key}"
        )


def _filled_text(value: Any, field: str) -> Iterator[Complaint]:
    yield from _text(value, field)
    if isinstance(value, str) and not value.strip():
        yield field, "is blank: it must hold a text"


def _text(value: Any, field: str) -> Iterator[Complaint]:
    if not isinstance(value, str):
        yield field, not_a(str, value)
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        yield field, f"holds half of a surrogate pair at character {error.start}, which is no text"


def key_problems(owner: Mapping[str, Any], prefix: str, key: str, kind: type) -> list[Complaint]:
    if key not in owner:
        return [(f"{prefix}{key}", "missing")]
    value = owner[key]
    good = is_int(value) if kind is int else isinstance(value, kind)
    return [] if good else [(f"{prefix}{key}", not_a(kind, value))]


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def not_a(kind: type, value: Any) -> str:
    return f"must be {_JSON_NAMES[kind]}, is {json_name(value)}"


def json_name(value: Any) -> str:
    """What JSON calls a value of this type, with its article: `an object`, `null`."""
    return _JSON_NAMES.get(type(value), "null")


def shown(value: Any) -> str:
    """`repr(value)` for a reason, at most about 80 characters of it; whatever `value` is, nothing
    raises.
    """
    try:
        return shorten(repr(value), 80)
    except (
        ValueError,
        RecursionError,
    ):  # a number of thousands of digits, or thousands of nested lists
        return f"{json_name(value)} too large to show"
