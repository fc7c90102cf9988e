"""The rows of qa-feedback: what their keys hold, and which places in their texts exist."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from fgrlhf.base.records import (
    ABSENT,
    AnyText,
    Complaint,
    Problem,
    Record,
    RowError,
    Text,
    read,
    read_each,
    shown,
)
from fgrlhf.data.places import (
    SentenceKeys,
    Source,
    overlap_problems,
    sentence_problems,
    span_problems,
)

Factual = Literal["Wrong-Grounding", "Unverifiable"]
NonFactual = Literal["Irrelevant", "Redundant", "Incoherent"]
Missing = Literal["Missing-Answer", "Missing-Major-Auxiliary", "Missing-Minor-Auxiliary"]
FACTUAL_ERRORS, NON_FACTUAL_ERRORS = get_args(Factual), get_args(NonFactual)
MISSING_INFO = get_args(Missing)
MINOR_INFO = MISSING_INFO[-1]
ANSWERS = 4
OUTCOMES = "0 (tie), 1 (first better), 2 (second better)"

PASSAGE_SENTENCES = SentenceKeys(id="passage_id", sentences="sentence_id", noun="passage")


def feedback_problems(rows: Sequence[Any], file: str) -> list[Problem]:
    """All problems of the rows of a feedback file, in order; [] if they can be used.

    `feedback` and `preference` are each optional: a row needs one of them.
    """
    return read_each(enumerate(rows), lambda _, row: read(JudgedAnswers, row), file)[1]


def example_problems(rows: Sequence[Any], file: str) -> list[Problem]:
    """All problems of the rows of {train,dev,test,train_1k}.json, in order; [] if none."""
    return read_each(enumerate(rows), lambda _, row: read(Example, row), file)[1]


def sample_problems(rows: Sequence[Any], file: str) -> list[Problem]:
    """All problems of the lines of a `samples.jsonl`, in order; [] if they can be used."""
    line_of_id: dict[str, int | str] = {}

    def read_line(line: int | str, row: Any) -> None:
        name = read(Sample, row).id
        if line_of_id.setdefault(name, line) != line:
            raise RowError("id", f"{shown(name)} is also the id of line {line_of_id[name]}")

    return read_each(enumerate(rows, 1), read_line, file, place="line")[1]


# ---- keys ----------------------------------------------------------------------------------------


def _outcome(value: int) -> int:
    if value not in (0, 1, 2):
        raise ValueError(f"{shown(value)} is none of {OUTCOMES}")
    return value


def _one_per_pair(outcomes: list[int]) -> list[int]:
    if len(outcomes) != ANSWERS * (ANSWERS - 1) // 2:
        pairs = "must have 6: outputs 1v2, 1v3, 1v4, 2v3, 2v4, 3v4"
        raise ValueError(f"has {len(outcomes)} entries, {pairs}")
    return outcomes


class ComparedAnswers(Record):
    """A question with its passages and four answers, and which of each two is better, if known."""

    question: Text
    passages: list[Source]
    answer_1: AnyText = Field(alias="prediction 1")
    answer_2: AnyText = Field(alias="prediction 2")
    answer_3: AnyText = Field(alias="prediction 3")
    answer_4: AnyText = Field(alias="prediction 4")
    preference: Annotated[
        list[Annotated[int, AfterValidator(_outcome)]], AfterValidator(_one_per_pair)
    ] = ABSENT


class MarkedError(Record):
    """An error in the first answer."""

    type: Literal[Factual, NonFactual] = Field(alias="error type")
    explanation: AnyText
    start: int
    end: int


class MissingInformation(Record):
    """Sentences of a passage that the first answer lacks."""

    type: Missing = Field(alias="error type")
    passage_id: int
    sentence_id: list[int]


class Annotation(Record):
    """What an annotator says about the first answer."""

    errors: list[MarkedError]
    missing: list[MissingInformation] = Field(alias="missing-info")
    corrected: AnyText = Field(alias="corrected-prediction")


class JudgedAnswers(ComparedAnswers):
    """A row of a feedback file."""

    gold: AnyText
    feedback: Annotation = ABSENT

    @model_validator(mode="after")
    def _places_exist(self):
        problems: list[Complaint] = []
        if self.feedback is not None:
            problems += _span_problems(self.feedback.errors, self.answer_1, self.passages)
            for i, info in enumerate(self.feedback.missing):
                ids = info.model_dump(include={"passage_id", "sentence_id"})
                field = f"feedback.missing-info[{i}]"
                problems += sentence_problems(ids, field, self.passages, PASSAGE_SENTENCES)
        elif self.preference is None:
            reason = "missing, and so is `preference`: a row needs at least one of them"
            problems.append(("feedback", reason))
        if problems:
            raise RowError.of(problems)
        return self


class WikiPassage(Record):
    """A passage that is not divided into sentences."""

    wikipage: AnyText
    content: AnyText


def _passage(value: Any) -> Any:
    return read(WikiPassage if isinstance(value, dict) else Source, value)


def _references(answers: list[str]) -> list[str]:
    if not answers:
        raise ValueError("is empty: at least one reference answer is needed")
    return answers


class Asked(Record):
    """A question with its passages."""

    question: Text
    passages: list[Annotated[Any, AfterValidator(_passage)]]


class Example(Asked):
    """A row of {train,dev,test,train_1k}.json."""

    text: Text
    answer: Annotated[list[Text], AfterValidator(_references)]


def _four(answers: list[str]) -> list[str]:
    if len(answers) != ANSWERS:
        count = f"has {len(answers)} entries, must have {ANSWERS}"
        raise ValueError(f"{count}: sample them with num_samples={ANSWERS}")
    return answers


class Sample(Asked):
    """A line of samples.jsonl."""

    id: Text
    predictions: Annotated[list[AnyText], AfterValidator(_four)]


# ---- places --------------------------------------------------------------------------------------


def _span_problems(
    errors: Sequence[MarkedError], text: str, passages: list[list[str]]
) -> Iterator[Complaint]:
    """Error spans must be whole words of the answer, and must not overlap."""
    spans = []  # (start, end, index in the annotator's order)
    for i, error in enumerate(errors):
        field = f"feedback.errors[{i}]"
        if error.type == "Wrong-Grounding":
            yield from _grounding(error.explanation, f"{field}.explanation", passages)
        wrong = list(span_problems(error.start, error.end, text, field, "prediction 1"))
        if not any("range" in reason for _, reason in wrong):
            spans.append((error.start, error.end, i))
        yield from wrong
    yield from overlap_problems(spans, "feedback.errors", "errors")


def _grounding(explanation: str, field: str, passages: list[list[str]]) -> Iterator[Complaint]:
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
