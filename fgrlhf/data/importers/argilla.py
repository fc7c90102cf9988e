"""Records of the annotation tool Argilla."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fgrlhf.base.records import RowError, check_list, check_number, check_object, check_text
from fgrlhf.data.importers.argilla_forms import nested
from fgrlhf.data.importers.files import (
    judged_text_key,
    optional_text,
    prompt_key,
    quoted_keys,
    read_objects,
    row_id,
    shown_prompt,
    user_name,
    whole_number,
    without_prompts,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import NO_ERROR, RESPONSE, SOURCE, JudgedResponse, Judgement
from fgrlhf.data.locate import UTF16
from fgrlhf.data.shapes import messages_of, split_answer

# an exported aspect has several queries, whose names are the aspect with one of these ends
VERDICT = " (verdict)"
SCORE = " (score)"
OF_SOURCE = " (source)"
UNSUBMITTED = {"discarded": "discarded answers", "draft": "drafts of answers"}  # by status


def argilla(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Records of Argilla, as `to_json`, `to_list(flatten=True)` or `to_datasets` write them.

    Documented in docs.argilla.io/latest/how_to_guides/import_export. For each of the project's
    queries, `responses` has `[{value, user_id}, ...]` and `suggestions` has `{value, agent}`. The
    aspect is the name of the query. The judged text is the field `response` or `text`, or the only
    field. Of a chat, that is the last message, and the others are the prompt.

    Records of Argilla 1, also those of data sets on the hub, are read in the same way; the forms
    are in fgrlhf/data/importers/argilla_forms.py.

    The flattened form has the keys `QUERY.responses`, `QUERY.responses.users`,
    `QUERY.responses.status`, `QUERY.suggestion` and `QUERY.suggestion.agent` beside the fields and
    metadata. Only this form has the status of each answer. `to_json` writes the answers that were
    discarded or only drafted like submitted ones; the report counts the records where that is
    possible, because their own status is `pending`.

    Argilla demands a value for a required query, so an empty list of spans is an answer: the
    judgement `no error`.

    A value is a list of spans `{label, start, end}`, a label, a list of labels, or a rating. A
    ranking can also be a list of texts, and the file does not tell them apart: such lists are read
    as labels and counted.

    Spans have no text, so they cannot be verified. The page of Argilla makes and shows them in
    UTF-16 code units, whose number differs from that of code points behind a character such as an
    emoji (argilla-io/argilla issues 4834 and 5729). All spans are read in them. The report counts
    the spans that depend on it on their own: where a program wrote code points, they are wrong, or
    outside the text. Only answers of the page are sure to be right.

    Discarded answers, drafts, scores of suggestions and vectors are left out and counted.
    """
    return read_objects(path, _argilla_record, report)


def _argilla_record(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    row = nested(row)
    fields = check_object("fields", row.get("fields"))
    response_key = _argilla_text_key(fields)
    value = fields[response_key]
    if isinstance(value, list):  # a chat: its last message is judged, as the answer to the others
        key = f"fields.{response_key}"
        if fields.get("prompt"):
            raise RowError(key, "is a chat, and there is a prompt too: put it into the chat")
        beginning, value = split_answer(key, messages_of(key, value))
        shown = [{"role": role, "content": text} for role, text in beginning]
        fields = {**fields, "prompt": shown}
    response = check_text(f"fields.{response_key}", value, may_be_blank=True)
    if not report.has_response(number, f"fields.{response_key}", response):
        return None
    source = None
    if response_key != SOURCE:
        source = optional_text("fields.source", fields.get(SOURCE))
    texts = {RESPONSE: response, SOURCE: source}
    judgements = []
    if row.get("status") == "pending" and _has_answers_without_status(row):
        report.notes[
            "records with answers and the status `pending`: these may be drafts or discarded, and"
            " only records.to_list(flatten=True) tells"
        ] += 1
    for query, answers in _by_name("responses", row).items():
        for i, value in enumerate(check_list(f"responses.{query}", answers)):
            key = f"responses.{query}[{i}]"
            answer = check_object(key, value)
            if answer.get("status") in UNSUBMITTED:
                report.losses[UNSUBMITTED[answer["status"]]] += 1
                continue
            annotator = user_name(answer.get("user_id"))
            value = answer.get("value")
            for judgement in _answers(number, f"{key}.value", query, value, texts, report):
                judgements.append(replace(judgement, annotator=annotator))
            if value == []:
                judgements.append(Judgement(_aspect(query), NO_ERROR, annotator=annotator))
    for query, value in _by_name("suggestions", row).items():
        key = f"suggestions.{query}"
        answer = check_object(key, value)
        if answer.get("score") not in (None, []):
            report.losses["scores of suggestions"] += 1
        agent = optional_text(f"{key}.agent", answer.get("agent")) or "suggestion"
        value = answer.get("value")
        for judgement in _answers(number, f"{key}.value", query, value, texts, report):
            judgements.append(replace(judgement, origin=agent))
        if value == []:
            judgements.append(Judgement(_aspect(query), NO_ERROR, origin=agent))
    if row.get("vectors"):
        report.losses["vectors of records"] += 1
    name_of_prompt = prompt_key("fields.", fields, response_key)
    used = (response_key, SOURCE, "prompt", name_of_prompt)
    meta = {key: value for key, value in fields.items() if key not in used}
    meta |= check_object("metadata", row.get("metadata") or {})
    prompt_id = row_id(row.get("id"), number)
    prompt = shown_prompt(f"fields.{name_of_prompt}", prompt_id, fields.get(name_of_prompt), meta)
    return JudgedResponse(prompt, response, tuple(judgements), source)


def _has_answers_without_status(row: Mapping[str, Any]) -> bool:
    """Whether a record has answers of which the file does not say what became of them."""
    for answers in _by_name("responses", row).values():
        for answer in answers if isinstance(answers, list) else []:
            if isinstance(answer, Mapping) and answer.get("status") is None:
                return True
    return False


def _aspect(query: str) -> str:
    """The aspect of a query: its name without the end that an export gave it."""
    aspect = query
    for end in (VERDICT, SCORE, OF_SOURCE):
        aspect = aspect.removesuffix(end) or aspect
    return aspect


def _argilla_text_key(fields: Mapping[str, Any]) -> str:
    """The key of the judged text. Raises `RowError` if several fields could be it."""
    others = without_prompts([key for key in fields if key not in ("prompt", SOURCE)])
    way_out = "Rename the field of the judged text in the file"
    return judged_text_key(
        "fields", fields, others, f"field (fields: {quoted_keys(others)})", way_out
    )


def _by_name(key: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answers or suggestions of a record, by the names of the project's queries."""
    return check_object(key, row.get(key) or {})


def _answers(
    number: int,
    key: str,
    query: str,
    value: Any,
    texts: Mapping[str, str | None],
    report: Report,
) -> list[Judgement]:
    """The judgements in an answer, without who gave it.

    Args:
      key: of the answer, for messages.
      query: the name of the project's query.
      value: the answer.
      texts: the text of each side.
    """
    is_of_source = query.endswith(OF_SOURCE) and texts[SOURCE] is not None
    side = SOURCE if is_of_source else RESPONSE
    check_text(key, query)
    aspect = _aspect(query)
    if value is None or (isinstance(value, str) and not value.strip()):
        report.losses["answers without a value"] += 1
        return []
    if isinstance(value, str):
        return [Judgement(aspect, check_text(key, value))]
    if isinstance(value, int | float):
        return [Judgement(aspect, score=check_number(key, value))]
    judgements = []
    items = check_list(key, value)
    texts_in_list = [item for item in items if isinstance(item, str)]
    if len(texts_in_list) > 1:
        report.losses["lists of texts, which may be rankings"] += 1
    for i, item in enumerate(items):
        place = f"{key}[{i}]"
        if isinstance(item, str):
            judgements.append(Judgement(aspect, check_text(place, item)))
            continue
        mark = check_object(place, item)
        if "start" not in mark:
            report.losses["answers that are rankings"] += 1
            continue
        start = whole_number(f"{place}.start", mark["start"])
        end = whole_number(f"{place}.end", mark.get("end"))
        label = check_text(f"{place}.label", mark.get("label"))
        text = texts[side] or ""
        span = report.locate_by_unit(number, place, text, start, end, UTF16)
        if span is not None:
            judgements.append(Judgement(aspect, label, *span, side=side))
    return judgements
