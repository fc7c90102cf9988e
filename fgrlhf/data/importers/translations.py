"""Error annotations of machine translations: MQM and ESA."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import shorten
from fgrlhf.base.files import parse_json
from fgrlhf.base.records import (
    Problem,
    RowError,
    check_list,
    check_object,
    check_place,
    check_text,
    check_texts,
)
from fgrlhf.data.importers.files import (
    TAB,
    any_number,
    numbered,
    optional_text,
    read_objects,
    row_id,
    table,
    whole_number,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.importers.tags import Untagged, untag
from fgrlhf.data.judgements import NO_ERROR, RESPONSE, SOURCE, JudgedResponse, Judgement
from fgrlhf.data.locate import Reading
from fgrlhf.data.offsets import UTF16_UNIT, units_of
from fgrlhf.text_types import Prompt

# ---- MQM tables ----------------------------------------------------------------------------------

UNPLACED = "errors whose mark is not found, kept as errors of the whole text"

MQM = "MQM"  # the aspect of judgements without a category
COLUMNS = ("system", "rater", "source", "target", "category", "severity")
# columns with the number of a segment, in the files of different years
NUMBERS = ("seg_id", "docSegId", "globalSegId", "doc_seg_id", "global_seg_id")
PLACE = ("system", "doc", "doc_id", *NUMBERS)  # columns that identify the system and the segment
NOTES = ("metadata", "comment", "note")
# keys of a line's `metadata` that are read
LINE_KEYS = (
    "segment",
    "note",
    "corrected_translation",
    "source_spans",
    "target_spans",
    "marked_text",
)
TOKEN_KEYS = ("source_tokens", "target_tokens")  # of `segment`: they place the spans
# keys of `segment` that are no part of a row: without its tokens they mean nothing
SENTENCE_KEYS = ("source_sentence_tokens", "target_sentence_tokens")
REFERENCE_KEYS = ("references", "primary_reference")
SEGMENT = "segment"  # the key of a row for what else `segment` holds
CORRECTIONS = "corrections"  # the key of a row for texts by rater, as feedback servers write them
QUOTE = '"'
ATTENTION_TEST = "hotw-test"  # the severity, in lower case, of a line that is no judgement


@dataclass(frozen=True)
class _Line:
    """A line of an MQM table.

    Args:
      number: the number of its row, from 0.
      place: what identifies the system and the segment.
      translation: what identifies the translated text. Lines with the same one judge the same text.
      target, source: the texts of the line, with the marks in them.
    """

    number: int
    row: Mapping[str, str]
    place: tuple[str, ...]
    translation: tuple[str, ...]
    target: Untagged
    source: Untagged

    @property
    def sentence(self) -> tuple[str, ...]:
        """What identifies the source text; the translations of all systems have the same one."""
        place = [value for name, value in _place(self.row).items() if name != "system"]
        return (*place, self.source.text)

    @property
    def is_test(self) -> bool:
        return self.row["severity"].strip().lower() == ATTENTION_TEST


def mqm(path: str | Path, report: Report) -> list[JudgedResponse]:
    """WMT MQM tables: one error per line, and all raters of a translation in one response.

    The error is between `<v>` and `</v>` in `target`, or in `source` if something is missing.
    Files of later years also have a column `metadata` with JSON: `target_spans` and `source_spans`
    are lists of [first, last], which are numbers of tokens of `segment.target_tokens` and
    `segment.source_tokens`, and `marked_text` is the marked text. Documented in
    github.com/google-research/google-research/tree/master/mqm_viewer and
    github.com/google/wmt-mqm-human-evaluation.

    A category `Fluency/Punctuation` becomes the aspect and the label. Lines `No-error` become a
    judgement of the whole text. An error without a mark is about the whole text, and so is one
    whose mark is empty, broken or not found: raters mark a blank that they add for something
    missing. Lines of the severity `HOTW-test` are left out: they say whether a rater found an error
    that was put into the text to test the rater.

    Cells are read as they are, and a quotation mark is a character. Only if all of a file's cells
    with quotation marks are quoted as in CSV, and some have doubled marks inside, is the file read
    as CSV.

    `metadata` can hold more. The references of a segment become those of its row, the primary one
    first. A `corrected_translation` is kept by rater, under `corrections`. What else a segment has,
    such as the scores of metrics, is kept under `segment`. Other values are counted as lost.

    Some raters of newstest2020 changed the text in which they marked an error. The response is the
    text that most lines of a translation have. If a line has another text, what it marks is
    searched in the response.
    """
    lines = _read_lines(path, report)
    responses = _most_frequent_texts(lines)
    judgements: dict[tuple[str, ...], list[Judgement]] = {}  # translation -> of all raters
    first_lines: dict[tuple[str, ...], _Line] = {}  # translation -> its first line
    stated = _Stated()
    for line in lines:
        if not report.has_response(line.number, "target", line.target.text):
            continue
        try:
            metadata = _metadata(line.row)
            stated.add_segment(line, metadata, report)
            if line.is_test:
                report.losses["rows that test the rater's attention (HOTW-test)"] += 1
                continue
            stated.add_correction(line, metadata, report)
            response = responses[line.translation]
            segment = stated.segments.get(line.place, {})
            line_judgements = _line_judgements(line, response, metadata, segment, report)
        except RowError as error:
            report.malformed.append(Problem(line.number, error.key, error.reason))
            continue
        if line.target.text != response:
            report.losses["lines whose text differs from that of their translation"] += 1
        first_lines.setdefault(line.translation, line)
        judgements.setdefault(line.translation, []).extend(line_judgements)
    judged = []
    for translation, line in first_lines.items():
        name = row_id("/".join(line.place), line.number)
        references = tuple(stated.references.get(line.sentence, ()))
        prompt = Prompt(name, "", references, _place(line.row) | stated.meta(line))
        source = line.source.text if line.source.text.strip() else None
        judged.append(
            JudgedResponse(prompt, responses[translation], tuple(judgements[translation]), source)
        )
    return judged


@dataclass
class _Stated:
    """What the lines of a table state about segments and translations, beside their errors.

    Args:
      segments: place -> the object `segment`, which is not repeated for every rater.
      references: source text and its place -> references, not repeated for every system.
      corrections: translation -> rater -> the corrected translation.
    """

    segments: dict[tuple[str, ...], Mapping[str, Any]] = field(default_factory=dict)
    references: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    corrections: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)

    def add_segment(self, line: _Line, metadata: Mapping[str, Any], report: Report) -> None:
        if "segment" not in metadata:
            return
        segment = check_object("metadata.segment", metadata["segment"])
        self.segments[line.place] = {**self.segments.get(line.place, {}), **segment}
        for key in SENTENCE_KEYS:
            if key in segment:
                report.losses[f"values of `metadata.segment.{key}`"] += 1
        references = self.references.setdefault(line.sentence, [])
        for text in _references(segment):
            if text not in references:
                references.append(text)

    def add_correction(self, line: _Line, metadata: Mapping[str, Any], report: Report) -> None:
        """Keep the corrected translation of a line, and count what is not read of its metadata."""
        for key in metadata:
            if key not in LINE_KEYS:
                report.losses[f"values of `metadata.{shorten(key, 40)}`"] += 1
        value = metadata.get("corrected_translation")
        text = optional_text("metadata.corrected_translation", value)
        if text is None:
            return
        corrections = self.corrections.setdefault(line.translation, {})
        if corrections.setdefault(line.row["rater"], text) != text:
            report.losses["further corrected translations of one rater"] += 1

    def meta(self, line: _Line) -> dict[str, Any]:
        """The keys of the row of a translation."""
        left_out = (*TOKEN_KEYS, *SENTENCE_KEYS, *REFERENCE_KEYS)
        segment = {}
        for key, value in self.segments.get(line.place, {}).items():
            if key not in left_out:
                segment[key] = value
        meta: dict[str, Any] = {}
        if segment:
            meta[SEGMENT] = segment
        if line.translation in self.corrections:
            meta[CORRECTIONS] = self.corrections[line.translation]
        return meta


def _references(segment: Mapping[str, Any]) -> list[str]:
    """The references of a segment that are not blank, the primary one first."""
    key = "metadata.segment.references"
    texts = check_object(key, segment.get("references") or {})
    primary = segment.get("primary_reference")
    names = sorted(texts, key=lambda name: name != primary)  # otherwise in their order
    references = [optional_text(f"{key}.{name}", texts[name]) for name in names]
    return [text for text in references if text is not None]


def _read_lines(path: str | Path, report: Report) -> list[_Line]:
    """The lines of a table that name a rater."""
    rows = table(path, COLUMNS, report, TAB, quoted=False, optional=(*PLACE, *NOTES))
    if _is_quoted(rows):
        quoted = [(row, name) for row in rows for name, cell in row.items() if QUOTE in cell]
        report.notes["cells in quotation marks, read as in CSV"] += len(quoted)
        for row, name in quoted:
            row[name] = row[name][1:-1].replace(QUOTE * 2, QUOTE)
    lines = []
    for number, row in numbered(rows, report):
        if row["rater"].strip():
            lines.append(_line(number, row))
        else:
            report.losses["rows without a rater"] += 1
    return lines


def _is_quoted(rows: Iterable[Mapping[str, str]]) -> bool:
    """Whether the cells of a table are quoted as in CSV: all those with a quotation mark.

    At least one of them has doubled marks inside. Otherwise the marks can be those of the texts.
    """
    has_doubled = False
    for row in rows:
        for cell in row.values():
            if QUOTE not in cell:
                continue
            inside = cell[1:-1]
            if len(cell) < 2 or cell[0] + cell[-1] != QUOTE * 2:
                return False
            if QUOTE in inside.replace(QUOTE * 2, ""):
                return False
            has_doubled = has_doubled or QUOTE in inside
    return has_doubled


def _line(number: int, row: Mapping[str, str]) -> _Line:
    target = untag(row["target"], ["v"])
    source = untag(row["source"], ["v"])
    place = tuple(_place(row).values())
    translation = (*place, source.text)
    if not any(name in row for name in NUMBERS):
        # a document can repeat a sentence, whose translations may differ
        translation = (*translation, target.text)
    return _Line(number, row, place, translation, target, source)


def _place(row: Mapping[str, str]) -> dict[str, str]:
    """The system and the segment of a line."""
    return {name: row[name] for name in PLACE if name in row}


def _most_frequent_texts(lines: Sequence[_Line]) -> dict[tuple[str, ...], str]:
    """The text that most lines of each translation have; of equally frequent ones, the first."""
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for line in lines:
        if not line.is_test and line.target.text.strip():
            counts.setdefault(line.translation, Counter())[line.target.text] += 1
    return {translation: texts.most_common(1)[0][0] for translation, texts in counts.items()}


def _metadata(row: Mapping[str, str]) -> Mapping[str, Any]:
    """The JSON object in the column `metadata`; {} if it is blank or there is no such column."""
    text = row.get("metadata", "").strip()
    if not text:
        return {}
    try:
        value = parse_json(text)
    except ValueError as error:
        raise RowError("metadata", f"is not JSON: {error}") from None
    return check_object("metadata", value)


def _line_judgements(
    line: _Line,
    response: str,
    metadata: Mapping[str, Any],
    segment: Mapping[str, Any],
    report: Report,
) -> list[Judgement]:
    """The judgements of one line: one, unless its error has several spans.

    An error whose marks are not found is about the whole text of the side on which they are.

    Args:
      response: the text of the translation.
      metadata: of the line.
      segment: the tokens of the segment, if there are any.
    """
    row = line.row
    parts: dict[str, Any] = {
        "annotator": row["rater"],
        "reason": _note(row, metadata, report),
    }
    category = row["category"]
    if is_no_error(category) or is_no_error(row["severity"]):
        return [Judgement(MQM, NO_ERROR, **parts)]
    if not category.strip(" /"):
        report.losses["errors without a category"] += 1
        return []
    aspect, label = category_parts(category)
    parts["severity"] = optional_text("severity", row["severity"])
    judgements = []
    marked: list[str] = []  # sides of marks
    for side, name, tagged, text in (
        (RESPONSE, "target", line.target, response),
        (SOURCE, "source", line.source, line.source.text),
    ):
        spans: Iterable[tuple[int, int]] = ()
        if tagged.marks or tagged.problems:
            marked.append(side)
            spans = _tagged_spans(line.number, name, tagged, text, report)
        elif metadata.get(f"{name}_spans"):
            marked.append(side)
            spans = _token_spans(line.number, name, text, metadata, segment, report)
        for start, end in spans:
            judgements.append(Judgement(aspect, label, start, end, side=side, **parts))
    if len(judgements) > 1:
        report.losses["errors with several spans, which became one judgement each"] += 1
    if not judgements:
        side = SOURCE if marked == [SOURCE] and line.source.text.strip() else RESPONSE
        judgements.append(Judgement(aspect, label, side=side, **parts))
        if marked:
            report.notes[UNPLACED] += 1
    return judgements


def _note(row: Mapping[str, str], metadata: Mapping[str, Any], report: Report) -> str | None:
    """The rater's note on a line. A judgement holds one, so others are counted as lost."""
    notes = [optional_text("metadata.note", metadata.get("note"))]
    notes += [optional_text(name, row.get(name)) for name in ("comment", "note")]
    different = list(dict.fromkeys(note for note in notes if note is not None))
    if not different:
        return None
    if len(different) > 1:
        report.losses["further notes on a line"] += len(different) - 1
    return different[0]


def category_parts(category: str) -> tuple[str, str]:
    """The aspect and the label of a category such as `Fluency/Punctuation`.

    A category without a slash is both of them.
    """
    aspect, _, label = category.partition("/")
    if not aspect.strip():
        aspect = MQM
    return aspect, label if label.strip() else aspect


def is_no_error(text: str) -> bool:
    """Whether a category or severity is `No-error`, which some files write as `no_error`."""
    return text.strip().lower().replace("_", "-").replace(" ", "-") == "no-error"


def _tagged_spans(
    number: int, name: str, tagged: Untagged, text: str, report: Report
) -> Iterator[tuple[int, int]]:
    """The spans of `text` that the tags of a line mark.

    If the line has another text, its marked characters are searched in `text`.
    """
    for problem in tagged.problems:
        report.drop_tags(number, name, problem)
    for mark in tagged.marks:
        if mark.start == mark.end:
            report.drop_tags(number, name, f"<v> at {mark.start} marks no character")
        elif not text.strip():
            report.drop_tags(number, name, "the marked text is blank")
        elif tagged.text == text:
            report.count_marked()
            yield mark.start, mark.end
        else:
            quote = tagged.text[mark.start : mark.end]
            span = report.locate(number, name, text, quote, mark.start, mark.end)
            if span is not None:
                yield span


def _token_spans(
    number: int,
    name: str,
    text: str,
    metadata: Mapping[str, Any],
    segment: Mapping[str, Any],
    report: Report,
) -> Iterator[tuple[int, int]]:
    """The spans of `text` that a line marks by numbers of tokens.

    Annotators marked the tokens. The text of the marked ones is searched for in `text`, which may
    differ.

    Args:
      name: `target` or `source`.
    """
    key = f"metadata.{name}_spans"
    tokens_key = f"segment.{name}_tokens"
    tokens = check_texts(tokens_key, segment.get(f"{name}_tokens"), may_be_blank=True)
    annotated = "".join(tokens)
    ends = list(accumulate(len(token) for token in tokens))  # of each token, in `annotated`
    spans = check_list(key, metadata[f"{name}_spans"])
    # `marked_text` has the text of all spans of both sides, so it is a quote if there is only one
    count = 0
    for side_key in ("source_spans", "target_spans"):
        count += len(check_list(f"metadata.{side_key}", metadata.get(side_key) or []))
    marked_text = metadata.get("marked_text")
    if marked_text is not None:
        check_text("metadata.marked_text", marked_text, may_be_blank=True)
    if count > 1:
        marked_text = None
    for i, value in enumerate(spans):
        pair = check_list(f"{key}[{i}]", value)
        if len(pair) != 2:
            raise RowError(f"{key}[{i}]", "must be [first token, last token]")
        bound = f"there are {len(tokens)} tokens, counted from 0"
        first = check_place(f"{key}[{i}][0]", pair[0], len(tokens), bound)
        last = check_place(f"{key}[{i}][1]", pair[1], len(tokens), bound)
        start = 0 if first == 0 else ends[first - 1]
        end = ends[last]
        quote = marked_text or annotated[start:end]
        span = report.locate(number, key, text, quote, start, end)
        if span is not None:
            yield span


# ---- MQM in JSON ---------------------------------------------------------------------------------


def mqm_json(path: str | Path, report: Report) -> list[JudgedResponse]:
    """MQM in JSON rows: `{src, mt, ref?, annotations: [{start, end, severity, text}, ...]}`.

    The data set RicardoRei/wmt-mqm-error-spans on the Hugging Face hub has this form. It has the
    errors of WMT 2020 to 2022 without their categories, so the label is the severity. Other keys of
    the rows are kept.
    """
    return read_objects(path, _json_translation, report)


def _json_translation(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    source = check_text("src", row.get("src"), may_be_blank=True)
    target = check_text("mt", row.get("mt"), may_be_blank=True)
    reference = optional_text("ref", row.get("ref"))
    if not report.has_response(number, "mt", target):
        return None
    annotations = check_list("annotations", row.get("annotations"))
    judgements = [] if annotations else [Judgement(MQM, NO_ERROR)]
    for i, value in enumerate(annotations):
        key = f"annotations[{i}]"
        error = check_object(key, value)
        start = whole_number(f"{key}.start", error.get("start"))
        end = whole_number(f"{key}.end", error.get("end"))
        severity = check_text(f"{key}.severity", error.get("severity"))
        quote = optional_text(f"{key}.text", error.get("text"))
        span = report.locate(number, key, target, quote, start, end)
        if span is None:
            report.notes[UNPLACED] += 1
        label = optional_text(f"{key}.category", error.get("category")) or severity
        judgements.append(Judgement(MQM, label, *(span or (None, None)), severity))
    used = ("id", "src", "mt", "ref", "annotations")
    meta = {name: value for name, value in row.items() if name not in used}
    prompt = Prompt(row_id(row.get("id"), number), "", (reference,) if reference else (), meta)
    return JudgedResponse(prompt, target, tuple(judgements), source if source.strip() else None)


# ---- ESA -----------------------------------------------------------------------------------------

ESA = "ESA"  # the aspect
MISSING = "missing"  # both offsets, and the label, of an omission
UNDECIDED = "undecided"  # the severity of a span that the annotator was about to remove


def _appraise(text: str, start: int, end: int) -> tuple[int, int]:
    """[start, end) in code points, from the offsets of Appraise.

    Appraise numbers the UTF-16 code units of the text without the blanks around it. The last marked
    one is included, so a single character has an end that is its start. Offsets outside that text
    give a span outside `text`.
    """
    leading_blanks = len(text) - len(text.lstrip())
    units = units_of(text.strip(), UTF16_UNIT)
    if not 0 <= start <= end < len(units.starts):
        return len(text) + 1, len(text) + 1
    return leading_blanks + units.starts[start], leading_blanks + units.ends[end]


ESA_READINGS = (Reading("UTF-16 code units, last one included", _appraise),)


def esa(path: str | Path, report: Report) -> list[JudgedResponse]:
    """Error Span Annotation: `{src, tgt, esa_spans, esa_score, annotator?, system?, ...}`.

    A span is `{start_i, end_i, severity, error_type?}`, and both offsets are `missing` where
    something is missing in the translation; the score is from 0 to 100. This is the file
    wmt24_esa.jsonl of github.com/wmt-conference/wmt24-news-systems, in which rows of one
    translation by several annotators follow each other.

    The offsets are those of Appraise (github.com/AppraiseDev/Appraise): they count the UTF-16 code
    units of the text without the blanks around it, and `end_i` is the last marked one. Spans have
    no text, so they cannot be verified. Spans of the severity `undecided` are left out.
    """
    return read_objects(path, _esa_row, report)


def _esa_row(number: int, row: Mapping[str, Any], report: Report) -> JudgedResponse | None:
    source = check_text("src", row.get("src"), may_be_blank=True)
    target = check_text("tgt", row.get("tgt"), may_be_blank=True)
    annotator = optional_text("annotator", row.get("annotator"))
    if not report.has_response(number, "tgt", target):
        return None
    errors = check_list("esa_spans", row.get("esa_spans"))
    judgements = [] if errors else [Judgement(ESA, NO_ERROR, annotator=annotator)]
    for i, value in enumerate(errors):
        key = f"esa_spans[{i}]"
        error = check_object(key, value)
        severity = check_text(f"{key}.severity", error.get("severity"))
        kind = optional_text(f"{key}.error_type", error.get("error_type"))
        if severity == UNDECIDED:
            report.losses["spans of an undecided severity"] += 1
            continue
        if error.get("start_i") == MISSING and error.get("end_i") == MISSING:
            judgements.append(
                Judgement(ESA, kind or MISSING, severity=severity, annotator=annotator)
            )
            continue
        start = whole_number(f"{key}.start_i", error.get("start_i"))
        end = whole_number(f"{key}.end_i", error.get("end_i"))
        span = report.locate(number, key, target, None, start, end, ESA_READINGS)
        if span is None:
            report.notes[UNPLACED] += 1
        place = span or (None, None)
        judgements.append(Judgement(ESA, kind or severity, *place, severity, annotator=annotator))
    score = row.get("esa_score")
    if score is not None:
        judgements.append(Judgement(ESA, score=any_number("esa_score", score), annotator=annotator))
    used = ("id", "src", "tgt", "esa_spans", "esa_score", "annotator")
    meta = {name: value for name, value in row.items() if name not in used}
    prompt = Prompt(row_id(row.get("id"), number), "", meta=meta)
    return JudgedResponse(prompt, target, tuple(judgements), source if source.strip() else None)
