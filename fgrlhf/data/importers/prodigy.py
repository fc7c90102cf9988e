"""Answers of the annotation tool Prodigy, and documents of spaCy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fgrlhf.base.records import RowError, check_list, check_object, check_place, check_text
from fgrlhf.data.accepted import ACCEPT, ANSWERS, REJECT
from fgrlhf.data.importers.files import (
    COMMENT,
    any_number,
    optional_text,
    prompt_key,
    read_objects,
    row_id,
    text_prompt,
    whole_number,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import NO_ERROR, SOURCE, SPAN_ASPECT, JudgedResponse, Judgement

MANUAL = ("ner_manual", "spans_manual")  # interfaces in which people mark spans
# interfaces in which nobody marks errors, although their rows can have a list of spans
OTHER_INTERFACES = (
    "relations",
    "choice",
    "classification",
    "text",
    "text_input",
    "compare",
    "diff",
)
# keys that say how a task was shown, or that are read
NO_TEXTS = ("html", "image", "audio", "video")  # keys of what other interfaces show
TASK_KEYS = ("text", "spans", "tokens", "answer", "label", "accept", "options", "relations")
MARKED_KEYS = ("start", "end")
TOKEN_KEYS = ("token_start", "token_end")

# ---- Prodigy -------------------------------------------------------------------------------------


@dataclass
class _Text:
    """A text, with the accepted answers about it."""

    judged: JudgedResponse
    judgements: list[Judgement] = field(default_factory=list)


def prodigy(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Prodigy's JSON lines, as `db-out` writes them: `{text, spans, answer, _annotator_id, ...}`.

    Documented in prodi.gy/docs/api-interfaces. A span is `{start, end, label, token_start,
    token_end}`; the offsets count code points, and `token_end` is the last token. Where a span has
    only numbers of tokens, its offsets are those of `tokens`. The answers of all annotators to one
    text become one row.

    Only rows with the answer `accept` are judgements. A rejected row says that what it shows is
    wrong, and nothing about the rest of its text; an ignored one says nothing. They are left out
    and counted, and a text without an accepted row is in no row. But where a row asks about one
    `label` of the text, rejecting it is the answer `not LABEL`.

    An accepted row of an interface for spans without one is the judgement `no error` (of the aspect
    `span`), unless the annotator marked a span in another row of the text. The chosen options
    (`accept`), an accepted `label` and a text (`user_input`) are judgements of the whole text, of
    aspects with these names. Relations are lost, and so are images and HTML.
    """
    texts: dict[tuple[str, str], _Text] = {}

    def read(number: int, row: Mapping[str, Any], report: Report) -> None:
        _add(number, row, texts, report)

    read_objects(path, read, report)
    items = []
    for text in texts.values():
        marked = {judgement.annotator for judgement in text.judgements if judgement.span}
        kept = [
            judgement
            for judgement in dict.fromkeys(text.judgements)  # a text can be asked about twice
            if judgement.label != NO_ERROR or judgement.annotator not in marked
        ]
        items.append(replace(text.judged, judgements=tuple(kept)))
    return items


def _add(
    number: int, row: Mapping[str, Any], texts: dict[tuple[str, str], _Text], report: Report
) -> None:
    """Add an answer to the others about its text."""
    answer = row.get("answer")
    if answer not in ANSWERS:
        raise RowError(
            "answer",
            f"must be {', '.join(ANSWERS)}: Prodigy's db-out writes it. A row without it is a task"
            " that nobody has answered; from=spacy reads documents of spaCy",
        )
    shown = next((key for key in NO_TEXTS if row.get(key) is not None), None)
    if shown is not None and row.get("text") is None:
        report.drop(number, shown, "is shown instead of a text", "rows without a text")
        return
    response = check_text("text", row.get("text"), may_be_blank=True)
    if not report.has_response(number, "text", response):
        return
    label = optional_text("label", row.get("label"))
    is_without = answer == REJECT and label is not None and not row.get("spans")
    if answer != ACCEPT and not is_without:
        report.losses[f"rows with the answer `{answer}`"] += 1
        return
    annotator = optional_text("_annotator_id", row.get("_annotator_id") or row.get("_session_id"))
    name_of_prompt = prompt_key("", row, "text")
    prompt_text = optional_text(name_of_prompt, row.get(name_of_prompt)) or ""
    source = optional_text(SOURCE, row.get(SOURCE))
    if is_without:
        judgements = [Judgement("label", f"not {label}")]
    else:
        judgements = list(_answers(number, row, response, report))
    meta = {}
    for key, value in row.items():
        used = (*TASK_KEYS, "id", "prompt", name_of_prompt, SOURCE, "user_input")
        if key not in used and key[:1] != "_":
            meta[key] = value
    prompt = text_prompt(row_id(row.get("id"), number), prompt_text, meta)
    judged = JudgedResponse(prompt, response, (), source)
    text = texts.setdefault((prompt_text, response), _Text(judged))
    if text.judged.prompt.meta != meta:
        report.losses["other keys of rows that are not the first of their text"] += 1
    text.judgements += [replace(judgement, annotator=annotator) for judgement in judgements]


def _answers(
    number: int, row: Mapping[str, Any], response: str, report: Report
) -> Iterator[Judgement]:
    """The judgements in an accepted row, without who made them."""
    spans = check_list("spans", row.get("spans") or [])
    tokens = check_list("tokens", row.get("tokens") or [])
    for i, value in enumerate(spans):
        yield from _mark(number, f"spans[{i}]", value, tokens, SPAN_ASPECT, response, report)
    asks_for_spans = row.get("spans") == [] and row.get("_view_id") not in OTHER_INTERFACES
    if not spans and (asks_for_spans or row.get("_view_id") in MANUAL):
        yield Judgement(SPAN_ASPECT, NO_ERROR)
    label = optional_text("label", row.get("label"))
    if label is not None:
        yield Judgement("label", label)
    if row.get("options") and row.get("accept") == []:
        report.losses["accepted rows in which no option was chosen"] += 1
    for i, option in enumerate(check_list("accept", row.get("accept") or [])):
        name = option if isinstance(option, str) else str(whole_number(f"accept[{i}]", option))
        yield Judgement("accept", check_text(f"accept[{i}]", name))
    note = optional_text("user_input", row.get("user_input"))
    if note is not None:
        yield Judgement("user_input", COMMENT, reason=note)
    if row.get("relations"):
        report.losses["relations"] += len(check_list("relations", row["relations"]))


def _mark(
    number: int,
    key: str,
    value: Any,
    tokens: list[Any],
    aspect: str,
    response: str,
    report: Report,
) -> Iterator[Judgement]:
    """The judgement of a span, if it is in the text."""
    span = check_object(key, value)
    by_tokens = None
    if tokens and all(span.get(name) is not None for name in TOKEN_KEYS):
        first, last = (_token(f"{key}.{name}", span[name], tokens) for name in TOKEN_KEYS)
        start = whole_number(f"tokens[{span['token_start']}].start", first.get("start"))
        end = whole_number(f"tokens[{span['token_end']}].end", last.get("end"))
        by_tokens = (start, end)
    if by_tokens is not None and all(span.get(name) is None for name in MARKED_KEYS):
        start, end = by_tokens
    else:
        start, end = (whole_number(f"{key}.{name}", span.get(name)) for name in MARKED_KEYS)
        if by_tokens is not None and by_tokens != (start, end):
            report.notes["spans whose tokens are at other offsets than theirs, which count"] += 1
    label = optional_text(f"{key}.label", span.get("label")) or SPAN_ASPECT
    quote = optional_text(f"{key}.text", span.get("text"))
    place = report.locate(number, key, response, quote, start, end)
    if place is not None:
        yield Judgement(aspect, label, *place)


def _token(key: str, value: Any, tokens: list[Any]) -> Mapping[str, Any]:
    bound = f"there are {len(tokens)} tokens, counted from 0"
    place = check_place(key, value, len(tokens), bound)
    return check_object(f"tokens[{place}]", tokens[place])


# ---- spaCy ---------------------------------------------------------------------------------------

DOC_KEYS = ("text", "ents", "spans", "cats", "tokens", "sents", "_", "id")


def spacy(
    path: str | Path, report: Report, confirmed: bool = False, annotator: str | None = None
) -> list[JudgedResponse]:
    """Documents of spaCy, as `Doc.to_json` writes them: `{text, ents, spans, cats, tokens}`.

    Documented in spacy.io/api/doc#to_json; offsets count code points (run with 3.8). An entity is
    `{start, end, label}`; `spans` has lists of these by the names of groups, which are the aspects;
    entities have the aspect `ents`. `cats` are scores of the whole text. What a document says about
    its tokens and sentences is lost. A document without a span can be one that nobody has judged.

    Args:
      confirmed: somebody judged every document, so one without a span is `no error` in its groups.
      annotator: who made the spans.
    """
    return read_objects(path, partial(_doc, confirmed=confirmed, annotator=annotator), report)


def _doc(
    number: int, row: Mapping[str, Any], report: Report, confirmed: bool, annotator: str | None
) -> JudgedResponse | None:
    response = check_text("text", row.get("text"), may_be_blank=True)
    if all(key not in row for key in ("ents", "spans", "cats")):
        raise RowError("ents", "missing, and so are `spans` and `cats`: this is no document")
    if not report.has_response(number, "text", response):
        return None
    groups: dict[str, Any] = {}
    if row.get("ents") is not None:
        groups["ents"] = row["ents"]
    groups |= check_object("spans", row.get("spans") or {})
    judgements: list[Judgement] = []
    count = 0
    for group, values in groups.items():
        check_text("spans", group)
        for i, value in enumerate(check_list(f"spans.{group}", values)):
            count += 1
            key = f"spans.{group}[{i}]"
            judgements += _mark(number, key, value, [], group, response, report)
    if not count and confirmed:
        judgements += [Judgement(group, NO_ERROR) for group in groups or ("ents",)]
    elif not count:
        report.notes["documents without a span, not read as `no error` (see confirmed=true)"] += 1
    for name, score in check_object("cats", row.get("cats") or {}).items():
        check_text("cats", name)
        judgements.append(Judgement(name, score=any_number(f"cats.{name}", score)))
    for key in ("tokens", "sents"):
        if row.get(key):
            report.losses[f"`{key}` of documents"] += 1
    name_of_prompt = prompt_key("", row, "text")
    used = (*DOC_KEYS, "prompt", name_of_prompt, SOURCE)
    meta = {key: value for key, value in row.items() if key not in used}
    prompt_text = optional_text(name_of_prompt, row.get(name_of_prompt)) or ""
    source = optional_text(SOURCE, row.get(SOURCE))
    prompt = text_prompt(row_id(row.get("id"), number), prompt_text, meta)
    named = [replace(judgement, annotator=annotator) for judgement in judgements]
    return JudgedResponse(prompt, response, tuple(named), source)
