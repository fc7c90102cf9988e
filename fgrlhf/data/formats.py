"""Row formats: the keys and values that a row of training data may have, for any task.

    prompts           {prompt, references?}
    demonstrations    {prompt, response, references?}
    comparisons       {prompt, responses, preferences | ranking | scores, marked?, margins?}
                      or {prompt?, chosen, rejected, margin?}
    spans             {prompt?, response, source?,
                       spans: [{start, end, label, severity?, evidence?, reason?, side?}, ...]}
    steps             {prompt, steps: [{text, label | score}, ...]}
    unpaired          {prompt, completion, label, marked?}: fgrlhf/data/unpaired_rows.py
    judgements        {prompt?, response, source?, judgements: [...]}: fgrlhf/data/judgements.py

Every row may also have an `id`; without one its number is its id. All other keys belong to the task
(`Prompt.meta`). docs/data_formats.md describes each format and the published formats that are read
as one of them. If a file has other keys, `columns` translates them (fgrlhf/data/rows.py).

Offsets count Unicode code points from 0, and an end is exclusive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fgrlhf.base.records import (
    AnyText,
    LeftOutError,
    Number,
    Record,
    RowError,
    Text,
    check_list,
    check_object,
    check_place,
    check_text,
    check_texts,
    check_whole,
    read,
)
from fgrlhf.data.comparison_rows import COMPARISONS
from fgrlhf.data.format import (
    CONVERSATIONS,
    SOURCE,
    Format,
    SpanRow,
    counted_span,
    prompt_of,
    prompt_row,
    prompt_text,
    read_inside,
    references_of,
    response_text,
    turns_of,
)
from fgrlhf.data.judgements import (
    JUDGEMENTS,
    SPAN_ASPECT,
    SPAN_TEXTS,
    STEP_ASPECT,
    JudgedResponse,
    Judgement,
    judged_spans,
    judged_steps,
    span_row,
)
from fgrlhf.data.locate import locate
from fgrlhf.data.rows import Row, key_list
from fgrlhf.data.shapes import (
    AFTER_MARKS,
    PromptText,
    chosen_completion,
    conversation_prompt,
    split_answer,
    split_marked_steps,
    text_after_marks,
)
from fgrlhf.data.unpaired_rows import UNPAIRED
from fgrlhf.text_types import Prompt


@dataclass(frozen=True)
class Demonstration:
    """A response to imitate. Metrics compare a policy's response with `prompt.references`.

    `untrained` has the places in `prompt.messages` of answers that are not to be imitated.
    """

    prompt: Prompt
    response: str
    untrained: tuple[int, ...] = ()


# ---- prompts -------------------------------------------------------------------------------------


def _parse_prompt(row: Row, number: int) -> Prompt:
    text = prompt_text(row, "prompt", "text")
    return prompt_of(row, number, text, references_of(row, "references", "answer"))


# ---- demonstrations ------------------------------------------------------------------------------


def _parse_demonstration(row: Row, number: int) -> Demonstration:
    references = references_of(row, "references", "answer")
    _refuse_rejected(row)
    untrained: list[int] = []
    form = row.first_given("response", "completion", "messages", CONVERSATIONS)
    if form in ("response", "completion"):
        text = prompt_text(row, "prompt", "text")
        response = response_text(row, "response", "completion")
    elif form in ("messages", CONVERSATIONS):
        key = row.key(form)
        spoken = row.get(form)
        turns = turns_of(row, form)
        messages, response = split_answer(key, turns)
        untrained = _untrained(spoken, len(turns) - len(spoken))
        if len(messages) in untrained:
            raise _untrained_answer(f"{key}[{len(messages)}].weight")
        text = conversation_prompt(key, messages)
        check_text(key, response)
    else:
        text = prompt_text(row, "prompt", "text")
        response = references[0] if references else row.first_of("response")
    prompt = prompt_of(row, number, text, references or (response,))
    return Demonstration(prompt, response, tuple(untrained))


def _refuse_rejected(row: Row) -> None:
    """Raise `LeftOutError` for an unpaired preference, {prompt, completion, label}, that is bad.

    A file of columns can have 0 for false, which in a row with another key than `completion` may
    mean something else.
    """
    label = row.values.get("label")
    is_zero = isinstance(label, int) and label == 0 and row.has("completion")
    if label is False or is_zero:
        raise LeftOutError(
            "label",
            "is false: this is an unpaired preference, and its completion was rejected, so that no"
            " model may imitate it. `fgrlhf dpo` learns from such rows with dpo.loss=kto"
            " data.pairs=unpaired; `fgrlhf data convert IN OUT format=demonstrations` keeps the"
            " good ones",
            "rows with `label` false, whose completions were rejected",
        )


def _untrained(messages: Sequence[Mapping[str, Any]], before: int) -> list[int]:
    """The places of messages with `weight` 0, which OpenAI's fine-tuning does not train on.

    Args:
      before: number of messages before the first one.
    """
    return [place for place, message in enumerate(messages, before) if message.get("weight") == 0]


def _untrained_answer(key: str) -> LeftOutError:
    return LeftOutError(
        key,
        "is 0: this answer is not to be imitated. Leave out the row, or let `fgrlhf data convert IN"
        " OUT format=demonstrations` leave out all such rows",
        "rows whose answer has `weight` 0, so that it is not to be imitated",
    )


def _demonstration_row(demonstration: Demonstration) -> dict[str, Any]:
    return prompt_row(demonstration.prompt, {"response": demonstration.response})


# ---- spans ---------------------------------------------------------------------------------------

OTHER_SPANS = "other_spans"  # of each response after the first, as the feedback pages write them
# keys of a row with marks in several responses that are about the first one, or about all of them
OF_ALL_RESPONSES = ("responses", "preferences", "ratings", "missing", "correction", "comment")
FURTHER = "responses after the first of their row, each with its own spans"


def _parse_spans(row: Row, number: int) -> JudgedResponse:
    text = prompt_text(row, "prompt") if row.has("prompt") else PromptText("")
    response = response_text(row, "response", "completion")
    if "spans" in row.values and not row.columns.get("spans") and not row.has("spans"):
        reason = "is null: write [] if somebody looked and marked nothing, else leave the row out"
        raise RowError("spans", reason)
    key = row.key(row.first_of("spans"))
    values = check_list(key, row.get("spans"))
    renamed_source = row.text(SOURCE) if SOURCE in row.columns else None
    prompt = prompt_of(row, number, text, references_of(row, "references"))
    if renamed_source is not None:
        prompt = replace(prompt, meta={**prompt.meta, SOURCE: renamed_source})
    source = prompt.meta.get(SOURCE)
    spans = []
    for i, value in enumerate(values):
        texts = response, source if isinstance(source, str) else prompt.text
        span = _span(row, f"{key}[{i}]", value, *texts)
        if span is None:
            continue
        if span.side == SOURCE and text.messages and not _has_source_text(row, prompt):
            raise RowError(
                f"{key}[{i}].side",
                "is `source`, and `prompt` is a list of turns, so its offsets count in no text of"
                " the row: put the text that they count in under `source`, or make `prompt` a text",
            )
        spans.append(span)
    if values and not spans:
        raise LeftOutError(
            key,
            "none of its spans was found in the text, and a response without a span would count as"
            " right",
            "responses left out, since none of their spans was found",
        )
    return judged_spans(prompt, response, spans)


def _has_source_text(row: Row, prompt: Prompt) -> bool:
    """Whether a row has the text in which spans of the source are: `source` or a prompt as text."""
    return isinstance(prompt.meta.get(SOURCE), str) or isinstance(row.get("prompt"), str)


def _split_responses(row: Row) -> list[Row]:
    """A row for each response that has marks: `other_spans` are those of responses after the first.

    The keys `OF_ALL_RESPONSES` stay in the first row.
    """
    others = row.values.get(OTHER_SPANS)
    if others is None or OTHER_SPANS in row.columns:
        return [row]
    lists = check_list(OTHER_SPANS, others)
    texts = check_texts("responses", row.values.get("responses"), may_be_blank=True)
    if len(lists) != len(texts) - 1:
        raise RowError(
            OTHER_SPANS,
            f"has {len(lists)} lists for {len(texts)} responses: it needs one for each response"
            " after the first",
        )
    first = {key: value for key, value in row.values.items() if key != OTHER_SPANS}
    rows = [Row(first, row.columns, row.counts, row.reading)]
    read = {key for name in OF_RESPONSE for key in key_list(row.columns.get(name, name))}
    shared = {key: value for key, value in first.items() if key not in {*read, *OF_ALL_RESPONSES}}
    columns = {name: path for name, path in row.columns.items() if name not in OF_RESPONSE}
    for text, spans in zip(texts[1:], lists):
        if text.strip():
            values = {**shared, "response": text, "spans": spans}
            rows.append(Row(values, columns, row.counts, row.reading))
            row.counts[FURTHER] += 1
    return rows


OF_RESPONSE = ("response", "completion", "spans")  # names that differ between responses


class _Span(SpanRow):
    label: Text


def _span(row: Row, name: str, value: Any, response: str, source: str) -> Judgement | None:
    """A span of a row; None if it has a quote that is not in its text, which is counted."""
    mark = read_inside(row, "spans", _Span, name, value)
    place = _place(row, name, mark, source if mark.side == SOURCE else response)
    if place is None:
        return None
    parts = mark.model_dump(include={"label", "side", *SPAN_TEXTS})
    return Judgement(SPAN_ASPECT, start=place[0], end=place[1], **parts)


def _place(row: Row, name: str, mark: SpanRow, text: str) -> tuple[int, int] | None:
    """The place of a span by its offsets, or by its quote as in an import (`locate`)."""
    start, end = mark.start, mark.end
    if mark.quote is None:
        return counted_span(row, name, start, end, text, mark.side)
    if start is not None and end is not None:
        start, end = check_whole(f"{name}.start", start), check_whole(f"{name}.end", end)
    else:
        start = end = None
    located = locate(text, mark.quote, start, end, (row.reading,))
    row.counts[f"spans, {located.outcome}"] += 1
    return located.span


# ---- steps ---------------------------------------------------------------------------------------

Step = tuple[str, Judgement]  # its text, and its judgement without a place


def _parse_steps(row: Row, number: int) -> JudgedResponse:
    if row.first_given("steps", "input", "completions") == "input":  # Math-Shepherd
        problem, marked = split_marked_steps(row.text("input"), row.text("label"))
        if text_after_marks(row.text("input")):
            row.counts[AFTER_MARKS] += 1
        text = PromptText(problem)
        steps = [_scored(step, is_good) for step, is_good in marked]
    else:
        text = prompt_text(row, "prompt")
        name = row.first_of("steps", "completions")
        values = _step_values(row, name)
        if not values or isinstance(values[0], Mapping):
            steps = _step_objects(row, row.key(name), values)
        else:
            steps = _step_texts(row, check_texts(row.key(name), values, may_be_blank=True))
        steps = _without_empty(row, row.key(name), steps, number)
    prompt = prompt_of(row, number, text, references_of(row, "references"))
    return judged_steps(prompt, steps)


def _scored(text: str, score: float) -> Step:
    return text, Judgement(STEP_ASPECT, score=float(score))


def _step_values(row: Row, name: str) -> list[Any]:
    """The steps as they are in a row: a list, or one text with a separator."""
    value = row.get(name)
    if not isinstance(value, str):
        return check_list(row.key(name), value)
    if row.separator is None:
        raise RowError(
            row.key(name),
            "must be a list, it is a text: give separator=TEXT, which is between its steps",
        )
    steps = row.text(name).split(row.separator)
    while not steps[-1].strip():  # it ends with a separator
        steps.pop()
    return steps


def _without_empty(row: Row, key: str, steps: Sequence[Step], number: int) -> list[Step]:
    """The steps that are not empty. Empty ones are counted, and the first of the file is named.

    Raises:
      LeftOutError: the first wrong step is empty, or an empty step has a label.
    """
    scores = [judgement.score for _, judgement in steps]
    first_bad = next(
        (i for i, score in enumerate(scores) if score is not None and score <= 0), None
    )
    for i, (text, _) in enumerate(steps):
        if text.strip():
            continue
        if i == first_bad or scores[i] is None:
            what = "rows with an empty step that is the first wrong one or has a label"
            raise LeftOutError(f"{key}[{i}]", "is empty, and no other step may stand for it", what)
        what = next((each for each in row.counts if each.startswith(EMPTY_STEPS)), None)
        row.counts[what or f"{EMPTY_STEPS}; the first is `{key}[{i}]` of row {number}"] += 1
    return [step for step in steps if step[0].strip()]


EMPTY_STEPS = "empty steps, left out"


class _StepRow(Record):
    text: AnyText
    label: Any = None  # a text, or a score
    score: Any = None


def _step_objects(row: Row, key: str, values: Sequence[Any]) -> list[Step]:
    """Steps as objects {text, label | score}, or with rated completions (PRM800K)."""
    steps = []
    # a number in `columns` comes before the steps' own judgements
    first_error = None
    is_named = any(name in row.columns for name in FIRST_ERRORS)
    if is_named or not all(_is_judged(row, value) for value in values):
        first_error = _first_error(row, len(values))
    for i, value in enumerate(values):
        name = f"{key}[{i}]"
        if "completions" not in check_object(name, value):
            step = read_inside(row, "steps", _StepRow, name, value)
            label, score = step.label, step.score
            if first_error is not None and (is_named or not _is_judged(row, value)):
                score = float(i < first_error)
                label = label if isinstance(label, str) else None
            steps.append(_step(name, step.text, label, score))
            continue
        completion = chosen_completion(name, value)
        if completion is None:  # it has no rating, so the rest of the solution has none either
            break
        steps.append(_scored(completion.text, completion.rating))
        if not completion.goes_on:
            break
    return steps


def _is_judged(row: Row, step: Any) -> bool:
    """Whether a step has a judgement of its own."""
    if not isinstance(step, Mapping) or "completions" in step:
        return True
    parts = [str(row.columns.get(f"steps.{part}", part)) for part in ("label", "score")]
    return any(step.get(part) is not None for part in parts)


def _step_texts(row: Row, texts: Sequence[str]) -> list[Step]:
    """Steps as texts, with a separate list of labels or scores, or the first wrong step."""
    first_error = _first_error(row, len(texts))
    if first_error is not None:
        return [_scored(text, i < first_error) for i, text in enumerate(texts)]
    name = row.first_of("labels", "scores")
    key = row.key(name)
    values = check_list(key, row.get(name))
    if len(values) != len(texts):
        raise RowError(key, f"has {len(values)} values for {len(texts)} steps")
    return [_step(f"{key}[{i}]", text, values[i], None) for i, text in enumerate(texts)]


# the number of the first wrong step, counted from 0 and from 1
FIRST_ERRORS = ("first_error", "first_error_from_1")


def _first_error(row: Row, n_steps: int) -> int | None:
    """The number of the first wrong step from 0, `n_steps` if all are right: null or -1.

    Returns:
      None if the row has no such number: its steps are judged in another way.
    """
    for base, name in enumerate(FIRST_ERRORS):
        if name not in row.columns and name not in row.values:
            continue
        value = row.get(name)
        if value is None or value == -1:
            return n_steps
        if isinstance(value, float) and value.is_integer():  # a column with nulls has such numbers
            value = int(value)
        bound = f"there are {n_steps} steps, counted from {base}"
        first = check_place(row.key(name), value, n_steps + base, bound) - base
        if first < 0:
            raise RowError(row.key(name), f"is {value}, but {bound}")
        return first
    return None


def _step(key: str, text: str, label: Any, score: Any) -> Step:
    """A step; a label that is a number, true or false is its score."""
    if label is not None and not isinstance(label, str):
        score = label
        label = None
    if label is None and score is None:
        raise RowError(key, "must have a label or a score")
    label = read(Text | None, label, f"{key}.label")
    score = read(Number | None, score, f"{key}.score")
    return text, Judgement(STEP_ASPECT, label, score=score)


def _steps_row(solution: JudgedResponse) -> dict[str, Any]:
    steps = []
    for step in solution.spans:
        values = {"text": solution.marked(step), "label": step.label, "score": step.score}
        steps.append({key: value for key, value in values.items() if value is not None})
    return prompt_row(solution.prompt, {"steps": steps})


# ---- the formats ---------------------------------------------------------------------------------

PROMPTS = Format(
    "prompts", ("id", "prompt", "text", "references", "answer"), _parse_prompt, prompt_row
)
DEMONSTRATIONS = Format(
    "demonstrations",
    (
        "id",
        "prompt",
        "text",
        "response",
        "completion",
        "messages",
        CONVERSATIONS,
        "references",
        "answer",
    ),
    _parse_demonstration,
    _demonstration_row,
)
SPANS = Format(
    "spans",
    (
        "id",
        "prompt",
        "response",
        "completion",
        SOURCE,
        "spans",
        "spans.start",
        "spans.end",
        "spans.label",
        "spans.side",
        "spans.quote",
        *[f"spans.{part}" for part in SPAN_TEXTS],
        "references",
    ),
    _parse_spans,
    lambda judged: span_row(judged)[0],
    _split_responses,
)
STEPS = Format(
    "steps",
    (
        "id",
        "prompt",
        "steps",
        "steps.text",
        "steps.label",
        "steps.score",
        "completions",
        "labels",
        "scores",
        *FIRST_ERRORS,
        "input",
        "label",
        "references",
    ),
    _parse_steps,
    _steps_row,
)
FORMATS: dict[str, Format[Any]] = {
    row_format.name: row_format
    for row_format in (PROMPTS, DEMONSTRATIONS, COMPARISONS, UNPAIRED, SPANS, STEPS, JUDGEMENTS)
}


def read_prompts(source: str | Path) -> Sequence[Prompt]:
    """The prompts of a file or data set, `{prompt, references?}` or `{text, answer}`.

    Those of a large .jsonl file stay there (`Format.stream`).
    """
    return PROMPTS.stream(source)
