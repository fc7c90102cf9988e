"""Answers that people judged fact by fact (FActScore), or as a whole (FeedbackQA)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fgrlhf.base.records import RowError, check_list, check_object, check_text
from fgrlhf.data.importers.files import optional_text, read_objects, row_id, text_prompt
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import NO_ERROR, JudgedResponse, Judgement

FACT = "fact"  # the aspect
SUPPORTED, IRRELEVANT = "S", "IR"
FACT_LABELS = {"NS": "not supported", IRRELEVANT: "irrelevant"}
FACTS, IS_RELEVANT = "human-atomic-facts", "is-relevant"
RATING = "rating"
QUERY = "question"  # a task's word: a key of FeedbackQA
RETRIEVED = "passage"  # a task's word: likewise
CONTENT = ("reference", "section_content")  # keys of the answer in it
PLACE = ("uri", "passage_id")  # a task's word: keys in it that say where the answer is from


def factscore(path: str | Path, report: Report) -> list[JudgedResponse]:
    """FActScore's labelled generations: `{input, output, topic, annotations: [...]}`, JSON lines.

    Documented in github.com/shmsw25/FActScore. An annotation is a sentence: `{text, is-relevant,
    human-atomic-facts: [{text, label}]}`, with the labels S (supported), NS and IR. Sentences have
    no offsets and are searched from the end of the one before. A fact that is not supported or
    irrelevant is a judgement of its sentence, with the fact as the reason, and so is a sentence
    that is not relevant. A response whose facts are all supported is `no error`. Facts that only a
    model wrote (`model-atomic-facts`) are lost.

    Responses without annotations, in which the model did not answer, are left out and counted.
    """
    return read_objects(path, _factscore_row, report)


def _factscore_row(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    if "annotations" not in row:
        raise RowError(
            "annotations",
            "missing: the output of FActScore's program has neither texts nor sentences, and only"
            " its labelled generations can be read",
        )
    response = check_text("output", row.get("output"), may_be_blank=True)
    if not report.has_response(number, "output", response):
        return None
    if row["annotations"] is None:
        report.losses["responses without annotations"] += 1
        return None
    sentences = check_list("annotations", row["annotations"])
    judgements = list(_facts(number, sentences, response, report))
    if not judgements:
        judgements = [Judgement(FACT, NO_ERROR)]
    used = ("input", "output", "annotations", "id")
    meta = {key: value for key, value in row.items() if key not in used and value is not None}
    prompt_text = optional_text("input", row.get("input")) or ""
    prompt = text_prompt(row_id(row.get("id"), number), prompt_text, meta)
    return JudgedResponse(prompt, response, tuple(judgements))


def _facts(number: int, sentences: list[Any], response: str, report: Report) -> Iterator[Judgement]:
    """The judgements of the sentences of a response."""
    place = 0
    for i, value in enumerate(sentences):
        key = f"annotations[{i}]"
        sentence = check_object(key, value)
        text = check_text(f"{key}.text", sentence.get("text"), may_be_blank=True)
        errors: list[tuple[str, str | None]] = []
        if sentence.get(IS_RELEVANT) is False:
            errors.append((FACT_LABELS[IRRELEVANT], None))
        for k, item in enumerate(check_list(f"{key}.{FACTS}", sentence.get(FACTS) or [])):
            name = f"{key}.{FACTS}[{k}]"
            fact = check_object(name, item)
            label = check_text(f"{name}.label", fact.get("label"))
            if label == SUPPORTED:
                report.notes["facts that are supported, which are no errors"] += 1
            elif label in FACT_LABELS:
                errors.append((FACT_LABELS[label], check_text(f"{name}.text", fact.get("text"))))
            else:
                raise RowError(
                    f"{name}.label", f"must be {SUPPORTED} or {' or '.join(FACT_LABELS)}"
                )
        if sentence.get("model-atomic-facts"):
            report.losses["facts of a model"] += 1
        if not errors:
            found = response.find(text, place)
            place = place if found < 0 else found + len(text)
            continue
        span = report.locate(number, key, response, text.strip(), place)
        for label, reason in errors:
            if span is None:  # an error without a place, so that the response does not seem right
                yield Judgement(FACT, label, reason=reason)
            else:
                yield Judgement(FACT, label, *span, reason=reason)
                place = span[1]


def feedback_qa(path: str | Path, report: Report) -> list[JudgedResponse]:
    """FeedbackQA: answers with `rating: [...]` and `feedback: [...]`, JSON.

    Documented in github.com/McGill-NLP/feedbackqa. Two unnamed people rate an answer (Excellent,
    Acceptable, Could be Improved, Bad) and explain it. The rating is the label, the explanation the
    reason. The judged text is the `answer` or, in the older form, the `section_content` of the part
    of a page that was retrieved.
    """
    return read_objects(path, _feedback_qa_row, report)


def _feedback_qa_row(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    key, value, meta = "answer", row.get("answer"), {}
    if value is None:
        found = check_object(RETRIEVED, row.get(RETRIEVED))
        reference = check_object(f"{RETRIEVED}.{CONTENT[0]}", found.get(CONTENT[0]))
        key, value = ".".join([RETRIEVED, *CONTENT]), reference.get(CONTENT[1])
        meta = {name: found[name] for name in PLACE if name in found}
    response = check_text(key, value, may_be_blank=True)
    if not report.has_response(number, key, response):
        return None
    ratings = check_list(RATING, row.get(RATING))
    reasons = check_list("feedback", row.get("feedback"))
    if len(ratings) != len(reasons):
        raise RowError("feedback", f"has {len(reasons)} texts for {len(ratings)} ratings")
    judgements = []
    for i, (rating, reason) in enumerate(zip(ratings, reasons)):
        label = check_text(f"{RATING}[{i}]", rating)
        text = optional_text(f"feedback[{i}]", reason)
        judgements.append(Judgement(RATING, label, reason=text))
    used = (QUERY, "answer", RETRIEVED, "feedback", RATING, "id")
    meta |= {name: value for name, value in row.items() if name not in used}
    prompt = text_prompt(row_id(row.get("id"), number), check_text(QUERY, row.get(QUERY)), meta)
    return JudgedResponse(prompt, response, tuple(judgements))
