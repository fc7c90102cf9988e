"""HelpSteer3: preferences, comments and edits of answers in conversations.

Documented on huggingface.co/datasets/nvidia/HelpSteer3. Its configs are separate files
(preference/train.jsonl.gz, ...), whose rows begin with `domain`, `language` and `context`, the
conversation.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.importers.files import optional_text, read_objects, whole_number
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import JudgedResponse, Judgement
from fgrlhf.data.rows import RowError, check_list, check_text
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
    texts = [check_text(f"response{i}", row.get(f"response{i}"), True) for i in (1, 2)]
    overall = whole_number("overall_preference", row.get("overall_preference"))
    if not -3 <= overall <= 3:
        raise RowError("overall_preference", f"must be from -3 to 3, it is {overall}")
    pairs: tuple[tuple[int, int], ...] = ()
    margins: tuple[float, ...] = ()
    if overall:
        pairs = ((0, 1),) if overall < 0 else ((1, 0),)
        margins = (float(abs(overall)),)
    prompt = _prompt(str(number), row, ("response1", "response2"))
    return Comparison(prompt, tuple(Answer(text) for text in texts), pairs, margins)


def feedback(path: str | Path, report: Report) -> list[JudgedResponse]:
    """`{context, response1, response2, feedback1: [text, ...], feedback2}`: two rows each.

    Every comment becomes a judgement of the whole response, with the text as its reason.
    """
    pairs = read_objects(path, _feedback_row, report)
    return [item for pair in pairs for item in pair]


def _feedback_row(number: int, row: Mapping[str, Any], report: Report) -> list[JudgedResponse]:
    pair = []
    for i in (1, 2):
        response = check_text(f"response{i}", row.get(f"response{i}"), may_be_blank=True)
        if not report.has_response(number, f"response{i}", response):
            continue
        judgements = _comments(f"feedback{i}", row.get(f"feedback{i}"))
        texts = ("response1", "response2", "feedback1", "feedback2")
        prompt = _prompt(f"{number}/{i}", row, texts)
        pair.append(JudgedResponse(prompt, response, judgements))
    return pair


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
    prompt = _prompt(str(number), row, ("original_response", "edited_response", "feedback"))
    prompt = Prompt(
        prompt.id,
        prompt.text,
        meta={**prompt.meta, "correction": correction},
        messages=prompt.messages,
    )
    return JudgedResponse(prompt, response, judgements)


def _prompt(name: str, row: Mapping[str, Any], read: tuple[str, ...]) -> Prompt:
    """The conversation of a row, with the keys that were not read."""
    context = row.get("context")
    if isinstance(context, str):
        text = PromptText.of(check_text("context", context))
    else:
        text = conversation_prompt("context", messages_of("context", context))
    meta = {key: value for key, value in row.items() if key not in ("context", "id", *read)}
    return Prompt(name, text.text, meta=meta, messages=text.messages)


def _comments(key: str, value: Any) -> tuple[Judgement, ...]:
    values = [value] if isinstance(value, str) else check_list(key, value)
    texts = [optional_text(f"{key}[{i}]", text) for i, text in enumerate(values)]
    return tuple(Judgement(COMMENT, COMMENT, reason=text) for text in texts if text)
