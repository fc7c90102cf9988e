"""Data sets of hallucinations and other flaws of generated texts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fgrlhf.base.records import Problem, RowError, check_list, check_object, check_text
from fgrlhf.data.importers.files import (
    TAB,
    list_in,
    numbered,
    optional_text,
    read_each,
    read_objects,
    row_id,
    table,
    text_prompt,
    whole_number,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.importers.tags import Untagged, untag
from fgrlhf.data.judgements import (
    NO_ERROR,
    RESPONSE,
    SOURCE,
    SPAN_ASPECT,
    JudgedResponse,
    Judgement,
)
from fgrlhf.data.locate import CODE_POINTS, WHOLE, fold, shifted
from fgrlhf.data.read import read_rows
from fgrlhf.text_types import Prompt

HALLUCINATION = "hallucination"  # the aspect

# ---- RAGTruth ------------------------------------------------------------------------------------

SOURCES_FILE = "source_info.jsonl"


def ragtruth(path: str | Path, report: Report) -> list[JudgedResponse]:
    """RAGTruth: response.jsonl, with the prompts of source_info.jsonl if it is in the same folder.

    Documented in github.com/ParticleMedia/RAGTruth. A label is `{start, end, text, meta,
    label_type, implicit_true?, due_to_null?}`; `meta` becomes the reason. Spans that are true
    although the source does not say so (`implicit_true`) have the severity `implicit true`.
    """
    prompts = _ragtruth_prompts(Path(path).parent / SOURCES_FILE, report)

    def read(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
        response = check_text("response", row.get("response"), may_be_blank=True)
        if not report.has_response(number, "response", response):
            return None
        labels = check_list("labels", row.get("labels"))
        judgements = [] if labels else [Judgement(HALLUCINATION, NO_ERROR)]
        for i, value in enumerate(labels):
            judgement = _ragtruth_label(number, f"labels[{i}]", value, response, report)
            if judgement is not None:
                judgements.append(judgement)
        source_id = str(row.get("source_id"))
        if source_id not in prompts:
            report.losses[f"prompts that are not in a {SOURCES_FILE} beside the file"] += 1
        meta = {key: value for key, value in row.items() if key not in ("id", "response", "labels")}
        prompt = text_prompt(row_id(row.get("id"), number), prompts.get(source_id, ""), meta)
        return JudgedResponse(prompt, response, tuple(judgements))

    return read_objects(path, read, report)


def _ragtruth_prompts(path: Path, report: Report) -> dict[str, str]:
    """The prompts by their `source_id`; none if there is no such file."""
    prompts: dict[str, str] = {}
    rows_of: dict[str, int] = {}  # the first row of each `source_id`
    if not path.exists():
        return prompts
    for number, row in enumerate(read_rows(path)):
        if not isinstance(row, Mapping) or not isinstance(row.get("prompt"), str):
            reason = f"in {SOURCES_FILE}: must be an object with a text"
            report.malformed.append(Problem(number, "prompt", reason))
            continue
        if row.get("source_id") is None:
            reason = f"in {SOURCES_FILE}: must not be null or missing"
            report.malformed.append(Problem(number, "source_id", reason))
            continue
        source_id = str(row["source_id"])
        prompt = optional_text("prompt", row["prompt"]) or ""
        first_row = rows_of.setdefault(source_id, number)
        if prompts.setdefault(source_id, prompt) != prompt:
            reason = f"in {SOURCES_FILE}: is that of row {first_row} too, with another prompt"
            report.malformed.append(Problem(number, "source_id", reason))
    return prompts


def _ragtruth_label(
    number: int, key: str, value: Any, response: str, report: Report
) -> Judgement | None:
    """The judgement in a label; None if its span is not found."""
    label = check_object(key, value)
    start = whole_number(f"{key}.start", label.get("start"))
    end = whole_number(f"{key}.end", label.get("end"))
    quote = optional_text(f"{key}.text", label.get("text"))
    kind = check_text(f"{key}.label_type", label.get("label_type"))
    reason = optional_text(f"{key}.meta", label.get("meta"))
    if label.get("due_to_null"):
        report.losses["due_to_null"] += 1
    span = report.locate(number, key, response, quote, start, end)
    if span is None:
        return None
    severity = "implicit true" if label.get("implicit_true") else None
    return Judgement(HALLUCINATION, kind, *span, severity, reason=reason)


# ---- XSum ----------------------------------------------------------------------------------------

NULL = "NULL"  # the type of hallucination where an annotator found none
XSUM_READINGS = (
    shifted("from 1", -1, -1),
    CODE_POINTS,
    shifted("from 1, last character included", -1, 0),
    shifted("from 0, last character included", 0, 1),
)
XSUM_COLUMNS = (
    "bbcid",
    "system",
    "summary",
    "hallucination_type",
    "hallucinated_span",
    "hallucinated_span_start",
    "hallucinated_span_end",
    "worker_id",
)


def xsum(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Hallucinations in XSum summaries (Maynez et al. 2020): one span of one annotator per line.

    The table is hallucination_annotations_xsum_summaries.csv of
    github.com/google-research-datasets/xsum_hallucination_annotations. Apostrophes and line breaks
    are escaped in it (`\\'`, `\\n`). The offsets count from 1 in the text without escapes, so the
    escapes are removed. Other ways to count are tried too; the stored text of the span decides.
    Lines with NULL say that the annotator found nothing. The judgements of all annotators of a
    summary become one row.
    """
    # (article, system, summary) -> the judgements of all annotators
    grouped: dict[tuple[str, str, str], list[Judgement]] = {}
    rows = table(path, XSUM_COLUMNS, report)
    for number, row in numbered(rows, report):
        summary = _unescape(row["summary"])
        if not report.has_response(number, "summary", summary):
            continue
        judgements = grouped.setdefault((row["bbcid"], row["system"], summary), [])
        annotator = optional_text("worker_id", row["worker_id"])
        if row["hallucination_type"] == NULL:
            judgements.append(Judgement(HALLUCINATION, NO_ERROR, annotator=annotator))
            continue
        try:
            label = check_text("hallucination_type", row["hallucination_type"])
            span = _xsum_span(number, row, summary, report)
        except RowError as error:
            report.malformed.append(Problem(number, error.key, error.reason))
            continue
        if span is not None:
            judgements.append(Judgement(HALLUCINATION, label, *span, annotator=annotator))
    judged = []
    for (article, system, summary), judgements in grouped.items():
        prompt = Prompt(f"{article}/{system}", "", meta={"bbcid": article, "system": system})
        judged.append(JudgedResponse(prompt, summary, tuple(judgements)))
    return judged


def _xsum_span(
    number: int, row: Mapping[str, str], summary: str, report: Report
) -> tuple[int, int] | None:
    start = whole_number("hallucinated_span_start", row["hallucinated_span_start"])
    end = whole_number("hallucinated_span_end", row["hallucinated_span_end"])
    quote = _unescape(row["hallucinated_span"])
    return report.locate(number, "hallucinated_span", summary, quote, start, end, XSUM_READINGS)


def _unescape(text: str) -> str:
    return text.replace("\\'", "'").replace("\\n", "\n")


# ---- DeFacto -------------------------------------------------------------------------------------

DEFACTO_READ = (
    "doc_id",
    "article",
    "candidate",
    "abstract",
    "has_error",
    "intrinsic_error",
    "extrinsic_error",
    "feedback",
)


def defacto(path: str | Path, report: Report) -> list[JudgedResponse]:
    """DeFacto (Liu et al. 2023): summaries with explanations, evidence and corrections.

    The files are {train,val,test}.jsonl of github.com/microsoft/DeFacto. A judgement is about the
    whole summary: `intrinsic`, `extrinsic`, both, or `no error`, with the explanation as reason.
    The evidence sentences become judgements of the source, the article. The corrected summary and
    the instructions are kept as `correction` and `instructions`.
    """
    return read_objects(path, _defacto_row, report)


def _defacto_row(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    response = check_text("candidate", row.get("candidate"), may_be_blank=True)
    if not report.has_response(number, "candidate", response):
        return None
    article = check_text("article", row.get("article"))
    feedback = check_object("feedback", row.get("feedback"))
    reason = optional_text("feedback.explanation", feedback.get("explanation"))
    evidence = optional_text("feedback.evidence", feedback.get("evidence"))
    labels = [kind for kind in ("intrinsic", "extrinsic") if row.get(f"{kind}_error")]
    if not labels:
        labels = ["error" if row.get("has_error") else NO_ERROR]
    judgements = []
    for label in labels:
        judgements.append(Judgement(HALLUCINATION, label, reason=reason, evidence=evidence))
    for line in (evidence or "").split("\n"):
        if not line.strip():
            continue
        span = report.locate(number, "feedback.evidence", article, line.strip())
        if span is not None:
            judgements.append(Judgement("evidence", "evidence", *span, side=SOURCE))
    meta = {key: value for key, value in row.items() if key not in DEFACTO_READ}
    meta["correction"] = feedback.get("summary") or None
    meta["instructions"] = feedback.get("instruction_list") or []
    reference = optional_text("abstract", row.get("abstract"))
    references = (reference,) if reference else ()
    prompt = Prompt(row_id(row.get("doc_id"), number), "", references, meta)
    return JudgedResponse(prompt, response, tuple(judgements), article)


# ---- FAVA ----------------------------------------------------------------------------------------

FAVA_TAGS = (
    "entity",
    "relation",
    "contradictory",
    "sentence",
    "invented",
    "subjective",
    "unverifiable",
)
CORRECTION, WRONG = "mark", "delete"
GENERATED = "errored_passage"  # a task's word
# key of the tagged text -> the tag around what the response says. Annotators write what is wrong as
# <delete> and its correction as <mark>; texts with generated errors have them the other way round.
FAVA_KEYS = {"annotated": WRONG, "completion": WRONG, GENERATED: CORRECTION}


def fava(path: str | Path, report: Report) -> list[JudgedResponse]:
    """FAVA (Mishra et al. 2024): errors as tags inside the text, with corrections.

    `<entity><delete>American</delete><mark>Argentine</mark></entity>` says that `American` is
    wrong. Documented in github.com/abhika-m/FAVA. The response is the tagged text without its tags
    and corrections; the correction is the judgement's evidence. A text without tags has no error.
    If the row has `output`, the response is compared with it.

    Some texts open an error's tag again where they should close it, and end with a model's `</s>`.
    Both are understood.
    """
    return read_objects(path, _fava_row, report)


def _fava_row(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    key = next((name for name in FAVA_KEYS if name in row), None)
    if key is None:
        raise RowError("annotated", f"missing; the tagged text is in one of {', '.join(FAVA_KEYS)}")
    correction_tag = CORRECTION if FAVA_KEYS[key] == WRONG else WRONG
    text = re.sub(r"\s*</s>\s*$", "", check_text(key, row[key]))
    tagged = untag(text, [*FAVA_TAGS, CORRECTION, WRONG], reopening_closes=True)
    for problem in tagged.problems:
        report.drop_tags(number, key, problem)
    cuts = [(mark.start, mark.end) for mark in tagged.marks if mark.tag == correction_tag]
    response = _without(tagged.text, cuts)
    if not report.has_response(number, key, response):
        return None
    output = optional_text("output", row.get("output"))
    if output is not None and fold(output).text.strip() != fold(response).text.strip():
        report.losses["rows whose `output` differs from the text without its tags"] += 1
    judgements = _fava_judgements(number, key, tagged, correction_tag, cuts, report)
    prompt_text = optional_text("prompt", row.get("prompt")) or ""
    used = ("id", "prompt", "output", key)
    meta = {name: value for name, value in row.items() if name not in used}
    prompt = text_prompt(row_id(row.get("id"), number), prompt_text, meta)
    return JudgedResponse(prompt, response, tuple(judgements))


def _fava_judgements(
    number: int,
    key: str,
    tagged: Untagged,
    correction_tag: str,
    cuts: Sequence[tuple[int, int]],
    report: Report,
) -> list[Judgement]:
    """The judgements of a tagged text.

    Args:
      correction_tag: the tag of corrections, which are not in the response.
      cuts: where the corrections were in `tagged.text`.
    """
    if not tagged.marks and not tagged.problems:
        return [Judgement(HALLUCINATION, NO_ERROR)]
    judgements = []
    for place, mark in enumerate(tagged.marks):
        if mark.tag not in FAVA_TAGS:
            if mark.inside is None:
                report.losses[f"<{mark.tag}> outside the tag of an error"] += 1
            continue
        start = _place_without(mark.start, cuts)
        end = _place_without(mark.end, cuts)
        if start == end:
            report.drop_tags(number, key, f"<{mark.tag}> at {start} marks no character")
            continue
        report.count_marked()
        corrections = []
        for inner in tagged.marks:
            content = tagged.text[inner.start : inner.end]
            if inner.inside == place and inner.tag == correction_tag and content.strip():
                corrections.append(content)
        evidence = " ".join(corrections) or None
        judgements.append(Judgement(HALLUCINATION, mark.tag, start, end, evidence=evidence))
    return judgements


def _without(text: str, cuts: Sequence[tuple[int, int]]) -> str:
    """The text without the characters of the cuts [start, end)."""
    pieces = []
    last = 0
    for start, end in sorted(cuts):
        pieces.append(text[last:start])
        last = max(last, end)
    pieces.append(text[last:])
    return "".join(pieces)


def _place_without(place: int, cuts: Sequence[tuple[int, int]]) -> int:
    """A place of the text after the characters of the cuts [start, end) are removed."""
    removed = 0
    last = 0
    for start, end in sorted(cuts):
        start = max(start, last)  # a correction can be inside another one
        removed += max(min(end, place) - start, 0)
        last = max(last, end)
    return place - removed


# ---- HaluQuestQA ---------------------------------------------------------------------------------

HALU_ASPECTS = {  # prefix of the columns -> aspect
    "factuality": "factuality",  # a task's word
    "irrelevance": "irrelevance",  # a task's word
    "incomplete_ans": "incomplete answer",
    "reference_example": "example",
    "ques_misconception": "misconception",
}
HALU_ANSWERS = {"answer1": "ans1_text", "answer2": "ans2_text"}  # label of a span -> column
HALU_PROMPT = "question_text"  # a task's word
HALU_PREFERENCES = ("Answer 1", "Answer 2")
HALU_COLUMNS = (
    "annotator",
    HALU_PROMPT,
    "ans1_text",
    "ans2_text",
    "ans_preference",
    *[f"{prefix}_{part}" for prefix in HALU_ASPECTS for part in ("span", "reason", "label")],
)
HALU_OPTIONAL = (
    "ans_preference_reason",
    "category",
    "source_file",
    "ans1_label",
    "ans2_label",
    *[f"{prefix}_helpful" for prefix in HALU_ASPECTS],
)


def haluquestqa(path: str | Path, report: Report) -> list[JudgedResponse]:
    """HaluQuestQA (Sachdeva et al. 2024): two answers with quoted errors of five kinds.

    The tab-separated table of github.com/UKPLab/arxiv2024-lfqa-hallucination. Spans are quoted
    without offsets, often not verbatim. Each answer becomes a row: its errors, and whether the
    annotator prefers it (`Answer 1` or `Answer 2`; any other preference is lost). A misconception
    is marked in the source, which is the prompt. A quote `ANSWER1` or `ANSWER2` is the heading of
    that answer on the annotators' page; it means all of the answer.

    A blank cell means that the annotator marked nothing of this kind. An answer gets `no error` if
    its row has a mark or a preference, and no mark is on this answer or on the prompt. A row with
    neither was not judged.
    """
    rows = table(path, HALU_COLUMNS, report, TAB, optional=HALU_OPTIONAL)
    judged = []
    for answers in read_each(rows, _halu_row, report):
        judged += answers
    return judged


def _halu_row(number: int, row: Mapping[str, str], report: Report) -> list[JudgedResponse]:
    """The judged answers of a row: two, or fewer if an answer is blank."""
    prompt_text = check_text(HALU_PROMPT, row[HALU_PROMPT])
    judgements_of: dict[str, list[Judgement]] = {answer: [] for answer in HALU_ANSWERS}
    for prefix, aspect in HALU_ASPECTS.items():
        for target, judgement in _halu_spans(number, prefix, aspect, row, report):
            if target == SOURCE:  # both answers are to the same prompt
                for judgements in judgements_of.values():
                    judgements.append(judgement)
            else:
                judgements_of[target].append(judgement)
    annotator = optional_text("annotator", row["annotator"])
    named = _halu_named(row)
    preferred = row["ans_preference"].strip()
    if preferred and preferred not in HALU_PREFERENCES:
        report.losses[f"preferences other than {' and '.join(HALU_PREFERENCES)}"] += 1
    judged = []
    for place, (answer, column) in enumerate(HALU_ANSWERS.items(), 1):
        response = row[column]
        if not report.has_response(number, column, response):
            continue
        judgements = judgements_of[answer]
        if (named or preferred) and answer not in named and SOURCE not in named:
            judgements.append(Judgement(SPAN_ASPECT, NO_ERROR, annotator=annotator))
        if preferred in HALU_PREFERENCES:
            label = "better" if preferred == HALU_PREFERENCES[place - 1] else "worse"
            reason = optional_text("ans_preference_reason", row.get("ans_preference_reason"))
            judgements.append(Judgement("preference", label, annotator=annotator, reason=reason))
        meta = {
            "category": row.get("category"),
            "author": row.get(f"ans{place}_label"),
            "file": row.get("source_file"),
        }
        prompt = text_prompt(f"{number}/{place}", prompt_text, meta)
        marks_source = any(judgement.side == SOURCE for judgement in judgements)
        source = prompt_text if marks_source else None
        judged.append(JudgedResponse(prompt, response, tuple(judgements), source))
    return judged


def _halu_named(row: Mapping[str, str]) -> set[str]:
    """What the marks of a row are in, also those that are not found: answers, or the source."""
    named = set()
    for prefix in HALU_ASPECTS:
        for target in list_in(f"{prefix}_label", row[f"{prefix}_label"]):
            named.add(target if target in HALU_ANSWERS else SOURCE)
    return named


def _halu_spans(
    number: int, prefix: str, aspect: str, row: Mapping[str, str], report: Report
) -> Iterator[tuple[str, Judgement]]:
    """The judgements of one aspect, each with what it judges: `answer1`, `answer2` or `source`."""
    annotator = optional_text("annotator", row["annotator"])
    key = f"{prefix}_span"
    quotes = list_in(key, row[key])
    targets = list_in(f"{prefix}_label", row[f"{prefix}_label"])
    reasons = list_in(f"{prefix}_reason", row[f"{prefix}_reason"])
    helpful = list_in(f"{prefix}_helpful", row.get(f"{prefix}_helpful", ""))
    if not len(quotes) == len(targets) == len(reasons):
        raise RowError(
            key, f"has {len(quotes)} spans, {len(targets)} labels and {len(reasons)} reasons"
        )
    for i, (quote, target, reason) in enumerate(zip(quotes, targets, reasons)):
        name = f"{key}[{i}]"
        quote = check_text(name, quote, may_be_blank=True)
        target = check_text(f"{prefix}_label[{i}]", target)
        reason = optional_text(f"{prefix}_reason[{i}]", reason)
        if target in HALU_ANSWERS:
            side = RESPONSE
            text = row[HALU_ANSWERS[target]]
        else:
            target = SOURCE
            side = SOURCE
            text = row[HALU_PROMPT]
        if quote.strip(" :") == target.upper() and quote not in text:
            report.spans[WHOLE] += 1
            span = (None, None)
        else:
            span = report.locate(number, name, text, quote)
        if span is None:
            continue
        label = aspect
        if i < len(helpful):
            label = "helpful" if helpful[i] else "not helpful"
        yield target, Judgement(aspect, label, *span, side=side, annotator=annotator, reason=reason)
