"""The row format `unpaired`: single responses that are good or bad, as KTO reads them.

    {prompt, completion, label, marked?}

Without pairs to say which of two responses is better, `label` says whether one is good. This module
also turns comparisons and spans into such rows, and back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fgrlhf.base.records import RowError, check_list
from fgrlhf.data.comparison_rows import marked_ranges
from fgrlhf.data.comparisons import Answer, Comparison, labels_of_pairs
from fgrlhf.data.format import (
    SOURCE,
    Format,
    prompt_of,
    prompt_row,
    prompt_text,
    references_of,
    response_text,
)
from fgrlhf.data.judgements import (
    NO_ERROR,
    SPAN_ASPECT,
    SPAN_TEXTS,
    JudgedResponse,
    Judgement,
    Losses,
    judged_spans,
)
from fgrlhf.data.rows import Row
from fgrlhf.text_types import Prompt

MARKED = "marked"  # the label of a span that only says where, and a key of rows


def _parse_unpaired(row: Row, number: int) -> Comparison:
    several = row.first_given("responses", "chosen")
    if several is not None and row.first_given("completion", "response") is None:
        raise RowError(
            several,
            "is of the format comparisons: read the rows with data.pairs=comparisons, or make"
            " unpaired ones of them by `fgrlhf data convert IN OUT format=comparisons"
            " to=unpaired`",
        )
    text = prompt_text(row, "prompt")
    response = response_text(row, "completion", "response")
    label = row.get(row.first_of("label"))
    # 1.0 is 1: pandas writes a column of numbers so in which one is missing
    if not isinstance(label, (int, float)) or label not in (0, 1):
        reason = "must be true for a good completion or false for a bad one"
        raise RowError(row.key("label"), reason)
    marked: tuple[tuple[int, int], ...] = ()
    if row.has(MARKED):
        key = row.key(MARKED)
        marked = marked_ranges(row, key, check_list(key, row.get(MARKED)), response)
    prompt = prompt_of(row, number, text, references_of(row, "references"))
    return Comparison(prompt, (Answer(response, marked),), (), labels=(bool(label),))


def _unpaired_row(item: Comparison) -> dict[str, Any]:
    values: dict[str, Any] = {"completion": item.answers[0].text, "label": item.labels[0]}
    if item.answers[0].marked:
        values[MARKED] = [list(place) for place in item.answers[0].marked]
    return prompt_row(item.prompt, values)


UNPAIRED = Format(
    "unpaired",
    ("id", "prompt", "completion", "response", "label", MARKED, "references"),
    _parse_unpaired,
    _unpaired_row,
)


# ---- comparisons ---------------------------------------------------------------------------------


def unpaired_of_comparisons(comparisons: Iterable[Comparison]) -> tuple[list[Comparison], Losses]:
    """The responses that are better, or worse, in most of their pairs, as good and bad ones."""
    losses = Losses()
    items = []
    for comparison in comparisons:
        labels = labels_of_pairs(len(comparison.answers), comparison.pairs)
        losses["comparisons without a decided pair"] += not comparison.pairs
        losses["margins"] += len(comparison.margins)
        if comparison.pairs:
            losses["responses that are better as often as worse"] += labels.count(None)
        for answer, label in zip(comparison.answers, labels):
            if label is not None and answer.text.strip():
                items.append(Comparison(comparison.prompt, (answer,), (), labels=(label,)))
            losses["blank responses"] += label is not None and not answer.text.strip()
    return items, +losses


@dataclass
class _Judged:
    """A prompt with its responses, which are not repeated, in the order of the file."""

    prompt: Prompt
    good: dict[str, Answer] = field(default_factory=dict)
    bad: dict[str, Answer] = field(default_factory=dict)


def comparisons_of_unpaired(items: Iterable[Comparison]) -> tuple[list[Comparison], Losses]:
    """One comparison for each prompt: every good response is better than every bad one.

    Prompts with responses of one kind give no comparison, and a response that has both labels
    decides nothing.
    """
    losses = Losses()
    by_prompt: dict[str, _Judged] = {}
    for item in items:
        judged = by_prompt.setdefault(item.prompt.text, _Judged(item.prompt))
        if item.prompt.meta != judged.prompt.meta:
            losses["other keys of rows that are not the first of their prompt"] += 1
        (answer,), (is_good,) = item.answers, item.labels
        answers = judged.good if is_good else judged.bad
        losses["repeated rows"] += answer.text in answers
        answers.setdefault(answer.text, answer)
    comparisons = [_comparison(judged, losses) for judged in by_prompt.values()]
    return [comparison for comparison in comparisons if comparison is not None], +losses


def _comparison(judged: _Judged, losses: Losses) -> Comparison | None:
    """The comparison of the responses to a prompt; None if no pair is decided."""
    both = judged.good.keys() & judged.bad.keys()
    losses["completions with both labels"] += len(both)
    good = [answer for text, answer in judged.good.items() if text not in both]
    bad = [answer for text, answer in judged.bad.items() if text not in both]
    if not good or not bad:
        what = "completions of prompts without a good or without a bad one"
        losses[what] += len(good) + len(bad)
        return None
    pairs = tuple((i, len(good) + k) for i in range(len(good)) for k in range(len(bad)))
    return Comparison(judged.prompt, (*good, *bad), pairs)


# ---- spans ---------------------------------------------------------------------------------------


def unpaired_of_spans(responses: Iterable[JudgedResponse]) -> tuple[list[Comparison], Losses]:
    """Responses with a span, which is an error, as bad ones, and the others as good ones."""
    losses = Losses()
    items = []
    for judged in responses:
        errors = [item for item in judged.judgements if item.label != NO_ERROR]
        places = {item.span for item in errors if item.side != SOURCE and item.span is not None}
        for error in errors:
            losses["labels of spans"] += error.label != MARKED
            losses["errors without a place in the response"] += (
                error.side == SOURCE or error.span is None
            )
            for part in SPAN_TEXTS:
                losses[part] += getattr(error, part) is not None
        prompt = judged.prompt
        if judged.source is not None and judged.source != prompt.text:
            prompt = replace(prompt, meta={**prompt.meta, SOURCE: judged.source})
        answer = Answer(judged.response, tuple(sorted(places)))
        items.append(Comparison(prompt, (answer,), (), labels=(not errors,)))
    return items, +losses


def spans_of_unpaired(items: Sequence[Comparison]) -> tuple[list[JudgedResponse], Losses]:
    """Good responses without a span, and bad ones with their marks.

    A bad response without a mark is left out: without a span it would count as right.
    """
    losses = Losses()
    responses = []
    for item in items:
        (answer,), (is_good,) = item.answers, item.labels
        if not is_good and not answer.marked:
            losses["bad responses without a mark"] += 1
            continue
        spans = []
        if is_good:
            losses["marks of good responses"] += len(answer.marked)
        else:
            for start, end in answer.marked:
                spans.append(Judgement(SPAN_ASPECT, MARKED, start, end))
        responses.append(judged_spans(item.prompt, answer.text, spans))
    return responses, +losses
