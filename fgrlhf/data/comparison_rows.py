"""The row format `comparisons`: answers to one prompt, and which of them are better.

    {prompt, responses, preferences | ranking | scores, marked?, margins?}
    {prompt?, chosen, rejected, margin?}

docs/data_formats.md describes the published forms that are read too.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator

from fgrlhf.base.records import (
    Listed,
    Number,
    RowError,
    check_list,
    check_place,
    check_text,
    read,
)
from fgrlhf.data.comparisons import (
    Answer,
    Comparison,
    margins_of_scores,
    pairs_of_outcomes,
    pairs_of_scores,
)
from fgrlhf.data.format import (
    CONVERSATIONS,
    Format,
    counted_span,
    prompt_of,
    prompt_row,
    prompt_text,
    references_of,
)
from fgrlhf.data.rows import Row
from fgrlhf.data.shapes import (
    PromptText,
    conversation_prompt,
    messages_of,
    split_answer,
    split_pair,
)
from fgrlhf.text_types import Message


def _parse_comparison(row: Row, number: int) -> Comparison:
    has_several = row.first_given("responses", "chosen") is not None
    is_single = row.has("label") and row.first_given("completion", "response") is not None
    if is_single and not has_several:
        raise RowError(
            "label",
            "judges a single response, as in rows of the format unpaired: read them with"
            " data.pairs=unpaired dpo.loss=kto, or make pairs of them by `fgrlhf data convert"
            " IN OUT format=unpaired to=pairs`",
        )
    if row.first_given("responses", "chosen") == "responses":
        text, texts = _compared_texts(row)
        pairs, margins = _pairs(row, len(texts))
    else:
        # raise an error that names all possible keys if the row has neither form
        row.first_of("responses", "chosen")
        row.first_of("rejected")
        text, *texts = _chosen_and_rejected(row)
        pairs = ((0, 1),)
        margins = ()
        if row.has("margin"):
            margins = (read(_Margin, row.get("margin"), row.key("margin")),)
    marked = _marked(row, texts)
    answers = tuple(Answer(answer, ranges) for answer, ranges in zip(texts, marked))
    prompt = prompt_of(row, number, text, references_of(row, "references"))
    return Comparison(prompt, answers, pairs, margins)


def _compared_texts(row: Row) -> tuple[PromptText, list[str]]:
    """The prompt, and the responses: texts, blank ones too, or conversations that end with them.

    Conversations may begin with the messages of the prompt. They are the prompt if the row has no
    other.
    """
    key = row.key("responses")
    texts = []
    beginnings = []
    for i, value in enumerate(check_list(key, row.get("responses"))):
        name = f"{key}[{i}]"
        beginning: list[Message] = []
        if isinstance(value, list):
            beginning, value = split_answer(name, messages_of(name, value))
        beginnings.append(beginning)
        if beginning != beginnings[0]:
            raise RowError(
                name,
                f"begins with other messages than `{key}[0]`: all must answer the same prompt",
            )
        texts.append(check_text(name, value, may_be_blank=True))
    if len(texts) < 2:
        raise RowError(key, f"a comparison needs two or more responses, there are {len(texts)}")
    if beginnings[0] and not row.has("prompt"):
        return conversation_prompt(key, beginnings[0]), texts
    return prompt_text(row, "prompt"), texts


JUDGED_BY = ("preferences", "ranking", "scores")  # of several, the first one counts


def _pairs(row: Row, n_answers: int) -> tuple[tuple[tuple[int, int], ...], tuple[float, ...]]:
    """(better, worse) indices from `preferences`, `ranking` or `scores`: the first that exists.

    One that `columns` names comes before the others. Also the margins of the pairs: given ones, or
    the differences of scores. Rows in which another one decides otherwise are counted.
    """
    name = row.first_of(*JUDGED_BY)
    decided = _pairs_of(row, name, n_answers)
    for other in JUDGED_BY:
        if other == name or not row.has(other):
            continue
        try:
            pairs, _ = _pairs_of(row, other, n_answers)
        except RowError:  # it does not count, so it may be something else
            continue
        if set(pairs) != set(decided[0]):
            row.counts[
                f"rows whose `{row.key(other)}` decides otherwise than `{row.key(name)}`, which"
                " counts"
            ] += 1
    return decided


def _pairs_of(
    row: Row, name: str, n_answers: int
) -> tuple[tuple[tuple[int, int], ...], tuple[float, ...]]:
    """The pairs in one of `JUDGED_BY`, and their margins."""
    key = row.key(name)
    values = check_list(key, row.get(name))
    if name == "preferences":
        pairs = _preferred_pairs(key, values, n_answers)
        return pairs, _margins(row, len(pairs))
    if len(values) != n_answers:
        raise RowError(key, f"has {len(values)} values for {n_answers} responses")
    numbers = read(list[Number], values, key)
    if name == "ranking":  # 1 is the best
        pairs = pairs_of_scores([-rank for rank in numbers])
        return pairs, _margins(row, len(pairs))
    pairs = pairs_of_scores(numbers)
    return pairs, margins_of_scores(numbers, pairs)


def _not_negative(margin: float) -> float:
    if margin < 0:
        raise ValueError("must be 0 or more: it says by how much the better response is better")
    return margin


_Margin = Annotated[Number, AfterValidator(_not_negative)]


def _margins(row: Row, n_pairs: int) -> tuple[float, ...]:
    """The given margins of the decided pairs; () if there are none."""
    if not row.has("margins"):
        return ()
    key = row.key("margins")
    values = check_list(key, row.get("margins"))
    if len(values) != n_pairs:
        raise RowError(key, f"has {len(values)} margins for {n_pairs} decided pairs")
    return read(Listed[_Margin], values, key)


def _preferred_pairs(
    key: str, values: Sequence[Any], n_answers: int
) -> tuple[tuple[int, int], ...]:
    """The pairs in `preferences`: [better, worse], or an outcome for every two responses."""
    if values and not isinstance(values[0], list):
        return pairs_of_outcomes(n_answers, _outcomes(key, values, n_answers))
    bound = f"there are {n_answers} responses, counted from 0"
    pairs = []
    for i, pair in enumerate(read(list[list[Any]], values, key)):
        name = f"{key}[{i}]"
        if len(pair) != 2:
            raise RowError(name, "must be [better, worse]: two places in the responses")
        better, worse = (check_place(f"{name}[{k}]", pair[k], n_answers, bound) for k in (0, 1))
        if better == worse:
            raise RowError(name, f"compares response {better} with itself")
        pairs.append((better, worse))
    return tuple(pairs)


def _outcomes(key: str, values: Sequence[Any], n_answers: int) -> list[int]:
    """An outcome 0, 1 or 2 for every two responses."""
    expected = n_answers * (n_answers - 1) // 2
    if len(values) != expected:
        raise RowError(
            key,
            f"has {len(values)} outcomes; {n_answers} responses have {expected} pairs: 1v2,"
            " 1v3, ..., 2v3, ...",
        )
    bound = "an outcome is 1 (first), 2 (second) or 0 (tie)"
    return [check_place(f"{key}[{i}]", value, 3, bound) for i, value in enumerate(values)]


def _chosen_and_rejected(row: Row) -> tuple[PromptText, str, str]:
    """Prompt, better and worse response of a pair, in one of the forms that are common on the hub.

    The pair has texts with a prompt, whole dialogs without one, or conversations, which may begin
    with the messages of the prompt. Rows of ShareGPT have the prompt under `conversations`.
    """
    chosen = _as_messages(row.get("chosen"))
    rejected = _as_messages(row.get("rejected"))
    if isinstance(chosen, list) or isinstance(rejected, list):
        chosen_key = row.key("chosen")
        rejected_key = row.key("rejected")
        better_start, better = split_answer(chosen_key, messages_of(chosen_key, chosen))
        worse_start, worse = split_answer(rejected_key, messages_of(rejected_key, rejected))
        if better_start != worse_start:
            raise RowError(
                rejected_key,
                f"begins with other messages than `{chosen_key}`: both must answer the same prompt",
            )
        if better_start:
            row.get("prompt")  # a copy of the prompt: mark it as read, so it is not in `meta`
            return conversation_prompt(chosen_key, better_start), better, worse
        return prompt_text(row, "prompt", CONVERSATIONS), better, worse
    better = row.text("chosen", may_be_blank=True)
    worse = row.text("rejected", may_be_blank=True)
    if row.has("prompt"):
        return prompt_text(row, "prompt"), better, worse
    prompt, better, worse, is_dialog = split_pair(better, worse)
    if not is_dialog:
        _refuse_other_texts(row)
        row.counts["pairs without a prompt, which is what both texts begin with"] += 1
    return prompt, better, worse


def _refuse_other_texts(row: Row) -> None:
    """Raise `RowError` if a row without a prompt has other texts, one of which may be it."""
    read = ("chosen", "rejected", "id")
    others = [key for key, value in row.values.items() if isinstance(value, str)]
    others = [key for key in others if key not in {*read, *(row.key(name) for name in read)}]
    if others:
        raise RowError(
            "prompt",
            f"missing, and the text under `{others[0]}` may be it: if it is, name it; if `chosen`"
            " and `rejected` begin with their prompt, remove the other texts",
            missing=("prompt",),
        )


def _as_messages(value: Any) -> Any:
    """A single message, as ShareGPT rows have it, as a conversation."""
    return [value] if isinstance(value, Mapping) else value


def _marked(row: Row, texts: Sequence[str]) -> list[tuple[tuple[int, int], ...]]:
    """For each response the ranges of characters that decided the comparison."""
    if not row.has("marked"):
        return [()] * len(texts)
    key = row.key("marked")
    lists = read(list[list[list[Any]]], row.get("marked"), key)
    if not lists:  # as null: files with columns have the key in every row
        return [()] * len(texts)
    if len(lists) != len(texts):
        raise RowError(key, f"has {len(lists)} lists for {len(texts)} responses")
    marked = []
    for i, (ranges, text) in enumerate(zip(lists, texts)):
        marked.append(marked_ranges(row, f"{key}[{i}]", ranges, text))
    return marked


def marked_ranges(
    row: Row, key: str, ranges: Sequence[Any], text: str
) -> tuple[tuple[int, int], ...]:
    """The ranges `[start, end]` of characters of a text that the row has under a key."""
    places = []
    for k, pair in enumerate(ranges):
        name = f"{key}[{k}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowError(name, "must be [start, end]")
        places.append(counted_span(row, name, pair[0], pair[1], text))
    return tuple(places)


def _comparison_row(comparison: Comparison) -> dict[str, Any]:
    values: dict[str, Any] = {
        "responses": [answer.text for answer in comparison.answers],
        "preferences": [list(pair) for pair in comparison.pairs],
    }
    if comparison.margins:
        values["margins"] = list(comparison.margins)
    if any(answer.marked for answer in comparison.answers):
        values["marked"] = [list(map(list, answer.marked)) for answer in comparison.answers]
    return prompt_row(comparison.prompt, values)


def pair_row(pair: Comparison) -> dict[str, Any]:
    """A comparison of two answers, the better one first, as {prompt, chosen, rejected, margin?}.

    These are the usual keys of preference data sets. The marks of the answers are left out.
    """
    values: dict[str, Any] = {
        "chosen": pair.answers[0].text,
        "rejected": pair.answers[1].text,
    }
    if pair.margins:
        values["margin"] = pair.margins[0]
    return prompt_row(pair.prompt, values)


COMPARISONS = Format(
    "comparisons",
    (
        "id",
        "prompt",
        CONVERSATIONS,
        "responses",
        "preferences",
        "ranking",
        "scores",
        "marked",
        "margins",
        "chosen",
        "rejected",
        "margin",
        "references",
    ),
    _parse_comparison,
    _comparison_row,
)
