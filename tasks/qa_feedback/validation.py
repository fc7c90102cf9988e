"""Validation of qa-feedback rows. A problem has a file, a row, a field and a reason."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fgrlhf.data.problems import (
    Complaint,
    Problem,
    SentenceKeys,
    choice_problems,
    filled_text_problems,
    filled_value_problems,
    is_int,
    key_problems,
    list_problems,
    not_a,
    overlap_problems,
    row_problems,
    sentence_problems,
    shown,
    source_list_problems,
    source_problems,
    span_problems,
    text_problems,
    text_value_problems,
)

FACTUAL_ERRORS = ("Wrong-Grounding", "Unverifiable")
NON_FACTUAL_ERRORS = ("Irrelevant", "Redundant", "Incoherent")
MINOR_INFO = "Missing-Minor-Auxiliary"
MISSING_INFO = ("Missing-Answer", "Missing-Major-Auxiliary", MINOR_INFO)

PASSAGE_SENTENCES = SentenceKeys(id="passage_id", sentences="sentence_id", noun="passage")


def feedback_problems(rows: Sequence[Any], file: str) -> list[Problem]:
    """All problems of the rows of a feedback file, in order; [] if they can be used.

    `feedback` and `preference` are each optional: a row needs one of them.
    """
    return row_problems(rows, file, _feedback_row)


def example_problems(rows: Sequence[Any], file: str) -> list[Problem]:
    """All problems of the rows of {train,dev,test,train_1k}.json, in order; [] if none."""
    return row_problems(rows, file, _example_row)


def sample_problems(rows: Sequence[Any], file: str, answers: int = 4) -> list[Problem]:
    """All problems of the lines of a `samples.jsonl`, in order; [] if they can be used.

    Args:
      rows: the values of the lines.
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
                line_of_first = line_of_id[name]
                complaints.append(("id", f"{shown(name)} is also the id of line {line_of_first}"))
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
    wrong_passages = source_list_problems(row, "passages")
    yield from wrong_passages
    passages = None if wrong_passages else row["passages"]
    if "feedback" not in row and "preference" not in row:
        yield "feedback", "missing, and so is `preference`: a row needs at least one of them"
    if "feedback" in row:
        yield from _feedback(row, passages)
    if "preference" in row:
        yield from _preference(row)


def _feedback(row: Mapping[str, Any], passages: list | None) -> Iterator[Complaint]:
    yield from key_problems(row, "", "feedback", dict)
    feedback = row["feedback"]
    if isinstance(feedback, dict):
        yield from text_problems(feedback, "feedback.", "corrected-prediction")
        for key in ("errors", "missing-info"):
            yield from key_problems(feedback, "feedback.", key, list)
        if isinstance(feedback.get("errors"), list):
            yield from _errors(feedback["errors"], row.get("prediction 1"), passages)
        if isinstance(feedback.get("missing-info"), list):
            for i, info in enumerate(feedback["missing-info"]):
                yield from _missing_info(info, f"feedback.missing-info[{i}]", passages)


def _example_row(row: Any) -> Iterator[Complaint]:
    if not isinstance(row, dict):
        yield "row", not_a(dict, row)
        return
    yield from filled_text_problems(row, "", "text", "question")
    wrong_answers = key_problems(row, "", "answer", list)
    yield from wrong_answers or list_problems(row["answer"], "answer", filled_value_problems)
    if row.get("answer") == []:
        yield "answer", "is empty: at least one reference answer is needed"
    yield from _passages(row)


def _sample_row(row: Any, answers: int) -> Iterator[Complaint]:
    if not isinstance(row, dict):
        yield "line", not_a(dict, row)
        return
    yield from filled_text_problems(row, "", "id", "question")
    yield from _passages(row)
    wrong = key_problems(row, "", "predictions", list)
    yield from wrong or list_problems(row["predictions"], "predictions", text_value_problems)
    predictions = row.get("predictions")
    if isinstance(predictions, list) and len(predictions) != answers:
        count = f"has {len(predictions)} entries, must have {answers}"
        yield "predictions", f"{count}: sample them with num_samples={answers}"


def _passages(row: Mapping[str, Any]) -> Iterator[Complaint]:
    wrong = key_problems(row, "", "passages", list)
    yield from wrong or list_problems(row["passages"], "passages", _passage)


def _passage(passage: Any, field: str) -> Iterator[Complaint]:
    """A passage of a prompts file: a list [title, sentence, ...], or {wikipage, content}."""
    if isinstance(passage, dict):
        yield from text_problems(passage, f"{field}.", "wikipage", "content")
    else:
        yield from source_problems(passage, field)


def _preference(row: Mapping[str, Any]) -> Iterator[Complaint]:
    yield from key_problems(row, "", "preference", list)
    preference = row.get("preference")
    if not isinstance(preference, list):
        return
    if len(preference) != 6:
        pairs = "must have 6: outputs 1v2, 1v3, 1v4, 2v3, 2v4, 3v4"
        yield "preference", f"has {len(preference)} entries, {pairs}"
    for i, value in enumerate(preference):
        if not is_int(value) or value not in (0, 1, 2):
            values = "0 (tie), 1 (first better), 2 (second better)"
            yield f"preference[{i}]", f"{shown(value)} is none of {values}"


# ---- error spans and missing information ---------------------------------------------------------


def _errors(errors: list, text: Any, passages: list | None) -> Iterator[Complaint]:
    spans = []  # (start, end, index in the annotator's order)
    for i, error in enumerate(errors):
        field = f"feedback.errors[{i}]"
        if not isinstance(error, dict):
            yield field, not_a(dict, error)
            continue
        yield from choice_problems(error, field, "error type", FACTUAL_ERRORS + NON_FACTUAL_ERRORS)
        yield from text_problems(error, f"{field}.", "explanation")
        explanation = error.get("explanation")
        if error.get("error type") == "Wrong-Grounding" and isinstance(explanation, str):
            yield from _grounding(explanation, f"{field}.explanation", passages)
        wrong = key_problems(error, f"{field}.", "start", int)
        wrong += key_problems(error, f"{field}.", "end", int)
        if not wrong and isinstance(text, str):
            wrong = list(span_problems(error["start"], error["end"], text, field, "prediction 1"))
            if not any("range" in reason for _, reason in wrong):
                spans.append((error["start"], error["end"], i))
        yield from wrong
    yield from overlap_problems(spans, "feedback.errors", "errors")


def _grounding(explanation: str, field: str, passages: list | None) -> Iterator[Complaint]:
    """The explanation of a Wrong-Grounding error: free text, or contradicted sentences as JSON."""
    if not explanation.startswith("{"):
        return
    try:
        ids = json.loads(explanation)
    except (ValueError, RecursionError):  # ValueError: no JSON, or a number of thousands of digits
        way_out = 'write {"passage_id":1,"sentence_id":[2]}'
        yield field, f"{shown(explanation)} is not valid JSON or is too large; {way_out}"
        return
    yield from sentence_problems(ids, field, passages, PASSAGE_SENTENCES)


def _missing_info(info: Any, field: str, passages: list | None) -> Iterator[Complaint]:
    if not isinstance(info, dict):
        yield field, not_a(dict, info)
        return
    yield from choice_problems(info, field, "error type", MISSING_INFO)
    yield from sentence_problems(info, field, passages, PASSAGE_SENTENCES)
