"""HelpSteer3: preferences, comments and edits of answers in conversations.

Documented on huggingface.co/datasets/nvidia/HelpSteer3. Its configs are separate files
(preference/train.jsonl.gz, ...), whose rows begin with `domain`, `language` and `context`, the
conversation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fgrlhf.base.records import RowError, check_list, check_text
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.importers.files import optional_text, read_objects, row_id, whole_number
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import JudgedResponse, Judgement
from fgrlhf.data.shapes import PromptText, conversation_prompt, messages_of
from fgrlhf.text_types import Prompt

COMMENT = "comment"


def preference(path: str | Path, report: Report) -> list[Comparison]:
    """`{context, response1, response2, overall_preference, individual_preference}`.

    A preference is from -3 (the first is much better) to 3 (the second is); its size becomes the
    margin, and 0 is a tie. The preferences and reasons of the single annotators are kept.
    """
    return read_objects(path, _preference_row, report)


def _preference_row(number: int, row: Mapping[str, Any], report: Report) -> Comparison:
    answers = []
    for key in ("response1", "response2"):
        answers.append(Answer(check_text(key, row.get(key), may_be_blank=True)))
    overall = whole_number("overall_preference", row.get("overall_preference"))
    if not -3 <= overall <= 3:
        raise RowError("overall_preference", f"must be from -3 to 3, it is {overall}")
    pairs: tuple[tuple[int, int], ...] = ()
    margins: tuple[float, ...] = ()
    if overall < 0:
        pairs = ((0, 1),)
    elif overall > 0:
        pairs = ((1, 0),)
    if overall != 0:
        margins = (float(abs(overall)),)
    prompt = _prompt(row_id(row.get("id"), number), row, ("response1", "response2"))
    return Comparison(prompt, tuple(answers), pairs, margins)


def feedback(path: str | Path, report: Report) -> list[JudgedResponse]:
    """`{context, response1, response2, feedback1: [text, ...], feedback2}`: two rows each.

    Every comment becomes a judgement of the whole response, with the text as its reason.
    """
    pairs = read_objects(path, _feedback_row, report)
    return [item for pair in pairs for item in pair]


def _feedback_row(number: int, row: Mapping[str, Any], report: Report) -> list[JudgedResponse]:
    read_keys = ("response1", "response2", "feedback1", "feedback2")
    judged = []
    for i in (1, 2):
        response = check_text(f"response{i}", row.get(f"response{i}"), may_be_blank=True)
        if not report.has_response(number, f"response{i}", response):
            continue
        judgements = _comments(f"feedback{i}", row.get(f"feedback{i}"))
        prompt = _prompt(f"{row_id(row.get('id'), number)}/{i}", row, read_keys)
        judged.append(JudgedResponse(prompt, response, judgements))
    return judged


def edit(path: str | Path, report: Report) -> list[JudgedResponse]:
    """`{context, original_response, edited_response, change_summary, feedback}`.

    The comments judge the original response; the edited one is kept as `correction`.
    """
    return read_objects(path, _edit_row, report)


def _edit_row(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    response = check_text("original_response", row.get("original_response"), may_be_blank=True)
    if not report.has_response(number, "original_response", response):
        return None
    judgements = _comments("feedback", row.get("feedback"))
    correction = check_text("edited_response", row.get("edited_response"), may_be_blank=True)
    read_keys = ("original_response", "edited_response", "feedback")
    prompt = _prompt(row_id(row.get("id"), number), row, read_keys)
    prompt = replace(prompt, meta={**prompt.meta, "correction": correction})
    return JudgedResponse(prompt, response, judgements)


def _prompt(prompt_id: str, row: Mapping[str, Any], read_keys: Sequence[str]) -> Prompt:
    """The conversation of a row as a prompt, with the keys that were not read as its `meta`."""
    context = row.get("context")
    if isinstance(context, str):
        text = PromptText.of(check_text("context", context))
    else:
        text = conversation_prompt("context", messages_of("context", context))
    meta = {key: value for key, value in row.items() if key not in ("context", "id", *read_keys)}
    return Prompt(prompt_id, text.text, meta=meta, messages=text.messages)


def _comments(key: str, value: Any) -> tuple[Judgement, ...]:
    """A judgement for every comment, of which there are one, as a text, or a list."""
    values = [value] if isinstance(value, str) else check_list(key, value)
    judgements = []
    for i, value in enumerate(values):
        comment = optional_text(f"{key}[{i}]", value)
        if comment is not None:
            judgements.append(Judgement(COMMENT, COMMENT, reason=comment))
    return tuple(judgements)
