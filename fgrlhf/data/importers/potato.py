"""Exports of the annotation tool potato."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.records import Problem, RowError, check_list, check_object, check_text, type_name
from fgrlhf.data.importers.clean_answers import UNMARKED, with_clean_answers
from fgrlhf.data.importers.files import (
    COMMENT,
    TEXT_KEYS,
    optional_text,
    prompt_key,
    read_objects,
    text_prompt,
    whole_number,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.importers.shown_texts import ShownText, text_of_html
from fgrlhf.data.judgements import NO_ERROR, RESPONSE, SOURCE, JudgedResponse, Judgement
from fgrlhf.data.read import read_rows

UNCHECKED = ("", "false", "off", "no")  # values of a choice that was not made
CHECKED = ("true", "on")
REMARK = "free_response"  # the name of the text beside the choices of a scheme
HUMAN = "human"  # the kind of an annotator
UNANSWERED = (
    "items without an answer in the file, left out: potato writes none without a mark or label"
)


@dataclass(frozen=True)
class _Item:
    """An item of the project, with the texts in which people mark by their keys."""

    judged: JudgedResponse
    response_key: str
    texts: Mapping[str, str]


def potato(
    path: str | Path, report: Report, items: str | None = None, aspect: str | None = None
) -> list[JudgedResponse]:
    """Potato's JSON lines: `{instance_id, user_id, labels, spans}`, one per annotator and item.

    `python -m potato.export --format jsonl` writes them as annotations.jsonl (seen in 2.12). They
    have no texts: these are in the project's data file, whose items have an `id` and the text under
    `response` or `text`.

    The aspect is the name of the scheme. `spans` has `{name, start, end, text, target_field}`; the
    offsets count the code points that the page shows, which lacks tags and further blanks. So a
    span is searched by its text in what the page shows, and the offsets only choose between several
    places. A span without its text is dropped. A span in several parts becomes a judgement of each.

    `labels` has, for each scheme, the chosen names with a value. A value that is a number is the
    score of the label, and another text than the name is a comment.

    Potato writes an answer only if it has a label or once had a span, so an answer of the file
    without a span was submitted: it is `no error` of every scheme that other answers mark. Whoever
    reads an item, marks nothing and goes on leaves no answer in the file, unless the project asks
    for a label too.

    Args:
      items: the project's data file.
      aspect: the scheme in which every annotator was asked to mark. Each answer without a mark of
        it is `no error` in it, and of no other scheme.

    Raises:
      UserError: no data file is given, or it cannot be read.
    """
    if items is None:
        raise UserError(
            f"{path} has no texts, which potato keeps in another file: give items=FILE, the data"
            " file of the project, with the keys `id` and `text`"
        )
    known = _items(items, report)
    judgements: dict[str, list[Judgement]] = {}

    def read(number: int, row: Mapping[str, Any], report: Report) -> None:
        item_id = row.get("instance_id")
        if item_id is None:
            raise RowError("instance_id", "missing: this is no row of potato's annotations.jsonl")
        if "labels" not in row and "spans" not in row:
            raise RowError(
                "labels",
                "missing, and so is `spans`: this is another file of potato. Write"
                " annotations.jsonl by `python -m potato.export --format jsonl`",
            )
        if str(item_id) not in known:
            reason = f"{shorten(repr(str(item_id)), 60)} is the id of no item of {items}"
            report.drop(number, "instance_id", reason, "annotations of unknown items")
            return
        answer = list(_answer(number, row, known[str(item_id)], aspect, report))
        judgements.setdefault(str(item_id), []).extend(answer)

    read_objects(path, read, report)
    judged = [
        replace(item.judged, judgements=tuple(judgements[item_id]))
        for item_id, item in known.items()
        if item_id in judgements
    ]
    without = len(known) - len(judged)
    if without:
        report.notes[UNANSWERED] += without
    return with_clean_answers(judged, aspect, report)


def _items(path: str, report: Report) -> dict[str, _Item]:
    """The items by their ids, without judgements."""
    items: dict[str, _Item] = {}
    for number, row in enumerate(read_rows(path)):
        try:
            if not isinstance(row, Mapping):
                raise RowError("row", f"must be an object, it is {type_name(row)}")
            item_id = str(row.get("id", f"item_{number + 1}"))  # as potato calls it
            if item_id in items:
                raise RowError("id", "is that of an earlier item too")
            item = _item(number, item_id, row, report)
        except RowError as error:
            reason = f"in {shorten(path)}: {error.reason}"
            report.malformed.append(Problem(number, error.key, reason))
            continue
        if item is not None:
            items[item_id] = item
    return items


def _item(number: int, item_id: str, row: Mapping[str, Any], report: Report) -> _Item | None:
    key = next((name for name in TEXT_KEYS if name in row), None)
    if key is None:
        raise RowError(
            TEXT_KEYS[0], "missing, and so is `text`: rename the `text_key` of the project's config"
        )
    response = ShownText.of(key, row[key]).text
    if not report.has_response(number, key, response):
        return None
    source = None if key == SOURCE else optional_text(SOURCE, row.get(SOURCE))
    name_of_prompt = prompt_key("", row, key)
    prompt_text = optional_text(name_of_prompt, row.get(name_of_prompt)) or ""
    used = (key, "id", "prompt", name_of_prompt, SOURCE)
    meta = {name: value for name, value in row.items() if name not in used}
    texts = {name: text for name, text in row.items() if isinstance(text, str)}
    texts |= {key: response, SOURCE: source or ""}
    prompt = text_prompt(item_id if item_id.strip() else str(number), prompt_text, meta)
    return _Item(JudgedResponse(prompt, response, (), source), key, texts)


def _answer(
    number: int, row: Mapping[str, Any], item: _Item, aspect: str | None, report: Report
) -> Iterator[Judgement]:
    """The judgements of one annotator of an item."""
    user = optional_text("user_id", None if row.get("user_id") is None else str(row["user_id"]))
    who: dict[str, Any] = {"annotator": user}
    origin = row.get("annotator_origin")
    if isinstance(origin, Mapping) and origin.get("kind") not in (None, HUMAN):
        who = {"origin": user or str(origin["kind"])}
    if row.get("links"):
        report.losses["links between spans"] += 1
    for scheme, values in check_object("labels", row.get("labels") or {}).items():
        for judgement in _labels(f"labels.{scheme}", scheme, values):
            yield replace(judgement, **who)
    marked = []
    for scheme, values in check_object("spans", row.get("spans") or {}).items():
        for i, value in enumerate(check_list(f"spans.{scheme}", values)):
            marked.append(scheme)
            for judgement in _span(number, f"spans.{scheme}[{i}]", scheme, value, item, report):
                yield replace(judgement, **who)
    if not marked or (aspect is not None and aspect not in marked):
        yield Judgement(UNMARKED, NO_ERROR, **who)


def _labels(key: str, scheme: str, values: Any) -> Iterator[Judgement]:
    """The judgements of the whole text in the answers to one scheme."""
    check_text(key, scheme)
    if not isinstance(values, Mapping):
        values = {"": values}
    for name, value in values.items():
        place = f"{key}.{name}"
        label = name if name.strip() else None
        text = value.strip() if isinstance(value, str) else None
        is_chosen = text is not None and text == label  # also `no`, where that is an answer
        is_unchecked = text is not None and text.lower() in UNCHECKED
        if value is None or value is False or (is_unchecked and not is_chosen):
            continue
        number = _number(value)
        is_choice = value is True or is_chosen or (text or "").lower() in CHECKED
        if is_choice and name != REMARK:
            yield Judgement(scheme, check_text(place, name))
        elif number is not None and name != REMARK:
            yield Judgement(scheme, label, score=number)
        else:
            reason = check_text(place, value if isinstance(value, str) else str(value))
            yield Judgement(scheme, COMMENT, reason=reason)


def _number(value: Any) -> float | None:
    """A finite number, or one in a text; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def _span(
    number: int, key: str, scheme: str, value: Any, item: _Item, report: Report
) -> Iterator[Judgement]:
    """The judgements of a span: one for each of its parts that is found."""
    span = check_object(key, value)
    check_text(key, scheme)
    label = check_text(f"{key}.name", span.get("name", span.get("label")))
    field = optional_text(f"{key}.target_field", span.get("target_field"))
    if field is None or field not in item.texts:  # as potato itself does
        field = item.response_key
    if field not in (item.response_key, SOURCE):
        report.losses[f"spans of the text `{shorten(field, 40)}`"] += 1
        return
    side = RESPONSE if field == item.response_key else SOURCE
    if span.get("kb_id"):
        report.losses["links of spans to a knowledge base"] += 1
    parts = check_list(f"{key}.additional_parts", span.get("additional_parts") or [])
    for i, part in enumerate([span, *parts]):
        name = key if i == 0 else f"{key}.additional_parts[{i - 1}]"
        place = _place(number, name, item.texts[field], check_object(name, part), report)
        if place is not None:
            yield Judgement(scheme, label, *place, side=side)


def _place(
    number: int, key: str, text: str, span: Mapping[str, Any], report: Report
) -> tuple[int, int] | None:
    """The place of a span in the text of the data file."""
    start = whole_number(f"{key}.start", span.get("start"))
    end = whole_number(f"{key}.end", span.get("end"))
    quote = check_text(f"{key}.text", span.get("text") or "", may_be_blank=True)
    if not quote:
        reason = "has no text, and its offsets count the text of the page"
        report.drop(number, key, reason, "spans without their text")
        return None
    forms = shown_forms(text)
    fitting = [form for form in forms if start >= 0 and form.text[start:end] == quote]
    form = (fitting or forms)[0]
    span_in_form = report.locate(number, key, form.text, quote, start, end)
    return span_in_form and form.origin(*span_in_form)


@dataclass(frozen=True)
class Shown:
    """What a page shows of a text, with the code points [start, end) of each of its characters."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """The code points of the text that the shown characters [start, end) came from."""
        return self.starts[start], self.ends[end - 1]


@lru_cache(maxsize=16)
def shown_forms(text: str) -> tuple[Shown, ...]:
    """What the pages of potato can show of a text: without tags, with tags, and as it is.

    The default page removes control characters, joins blanks and cuts those at the ends. Whether it
    shows a tag depends on its name.
    """
    kept: list[tuple[str, int, int]] = []
    for place, character in enumerate(text):
        if character != "\n" and (character < " " or character == "\x7f"):
            continue
        if character == " " and kept and kept[-1][0] == " ":
            kept[-1] = (" ", kept[-1][1], place + 1)
        else:
            kept.append((character, place, place + 1))
    while kept and kept[0][0].isspace():
        kept.pop(0)
    while kept and kept[-1][0].isspace():
        kept.pop()
    joined = "".join(shown for shown, _, _ in kept)
    plain, starts, ends = text_of_html(joined)
    without_tags = Shown(
        plain, [kept[place][1] for place in starts], [kept[place - 1][2] for place in ends]
    )
    with_tags = Shown(joined, [start for _, start, _ in kept], [end for _, _, end in kept])
    return without_tags, with_tags, Shown(text, range(len(text)), range(1, len(text) + 1))
