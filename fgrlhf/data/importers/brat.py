"""Standoff files of the annotation tool brat: DOCUMENT.txt with DOCUMENT.ann."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_text
from fgrlhf.base.records import Problem, RowError
from fgrlhf.data.importers.files import numbered, whole_number
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import NO_ERROR, SPAN_ASPECT, JudgedResponse, Judgement
from fgrlhf.data.locate import CODE_POINTS, UTF16
from fgrlhf.text_types import Prompt

ANNOTATIONS, TEXT = ".ann", ".txt"
READINGS = (CODE_POINTS, UTF16)  # brat counts characters; programs in JavaScript or Java may not
SEVERITY = "severity"
NOTES = "AnnotatorNotes"
LOST = {"R": "relations", "*": "relations", "E": "events", "N": "links to a knowledge base"}


def brat(
    path: str | Path, report: Report, annotator: str | None = None, confirmed: bool = False
) -> list[JudgedResponse]:
    """Standoff files of brat: a file DOCUMENT.ann beside its DOCUMENT.txt, or a folder of them.

    Documented in brat.nlplab.org/standoff.html; brat itself was not run. A line `T1`, its type with
    offsets, and its text is a mark: the type is the label, the aspect is `span`. Offsets are
    characters of the text file, and the marked text is compared. A mark in several parts becomes a
    judgement of each. An attribute called severity and a note of an annotator are the severity and
    the reason; other attributes, events, relations and links to knowledge bases are lost.

    Brat notes no names: if several folders have the same document, these are the annotators. An
    empty file is made for every document, so one can be a document that nobody has read.

    Args:
      annotator: who made all annotations.
      confirmed: somebody read every document, so one without a mark is `no error`.

    Raises:
      UserError: there is no such file, or one lacks its text.
    """
    documents: dict[tuple[str, str], dict[str, list[Judgement]]] = {}
    for number, file in numbered(_files(Path(path)), report):
        text_file = file.with_suffix(TEXT)
        if not text_file.is_file():
            raise UserError(
                f"{shorten(file)} needs the text that it is about, {shorten(text_file)}: put both"
                " into one folder"
            )
        text = read_text(text_file)
        if not report.has_response(number, text_file.name, text):
            continue
        try:
            judgements = list(_judgements(number, file, text, report))
        except RowError as error:
            report.malformed.append(Problem(number, f"{file.name}: {error.key}", error.reason))
            continue
        if not judgements and confirmed:
            judgements = [Judgement(SPAN_ASPECT, NO_ERROR)]
        elif not judgements:
            report.notes["files without a mark, not read as `no error` (see confirmed=true)"] += 1
        by_folder = documents.setdefault((file.stem, text), {})
        by_folder.setdefault(str(file.parent), []).extend(judgements)
    items = []
    for (name, text), by_folder in documents.items():
        judged: list[Judgement] = []
        for folder, judgements in by_folder.items():
            who = annotator or (Path(folder).name if len(by_folder) > 1 else None)
            judged += [replace(judgement, annotator=who) for judgement in judgements]
        items.append(JudgedResponse(Prompt(name, ""), text, tuple(judged)))
    return items


def _files(path: Path) -> list[Path]:
    """The file of annotations, or those of a folder in the order of their names."""
    if path.is_dir():
        files = sorted(path.rglob(f"*{ANNOTATIONS}"))
        if files:
            return files
        raise UserError(
            f"{shorten(path)} has no {ANNOTATIONS} file: give the folder of brat's data"
        )
    file = path.with_suffix(ANNOTATIONS) if path.suffix == TEXT else path
    if file.suffix != ANNOTATIONS or not file.is_file():
        raise UserError(
            f"{shorten(file)} is no {ANNOTATIONS} file of brat: give one, with its {TEXT} in the"
            " same folder, or the folder"
        )
    return [file]


def _judgements(number: int, file: Path, text: str, report: Report) -> Iterator[Judgement]:
    """The judgements in a file of annotations."""
    marks: dict[str, list[str]] = {}  # id -> its cells
    parts: dict[str, dict[str, str]] = {}  # id -> severity and reason of the mark
    lost: Counter[str] = Counter()
    for line_number, line in enumerate(read_text(file).splitlines(), 1):
        if not line.strip():
            continue
        cells = line.split("\t")
        kind, words = cells[0][:1], cells[1].split() if len(cells) > 1 else []
        if kind == "T":
            if len(cells) < 3 or len(words) < 3:
                raise RowError(f"line {line_number}", "must be ID, TYPE START END and the text")
            marks[cells[0]] = cells
        elif kind in LOST:
            lost[LOST[kind]] += 1
        elif len(words) >= 2 and kind in ("A", "M", "#"):
            about = parts.setdefault(words[1], {})
            if kind == "#" and words[0] == NOTES and len(cells) > 2 and cells[2].strip():
                about["reason"] = cells[2]
            elif kind != "#" and words[0].lower() == SEVERITY and len(words) > 2:
                about[SEVERITY] = words[2]
            else:
                lost[f"values of `{shorten(words[0], 40)}`"] += 1
        else:
            raise RowError(
                f"line {line_number}", "is no annotation of brat: it needs an ID and tabs"
            )
    for name, cells in marks.items():
        label, _, offsets = cells[1].partition(" ")
        for start, end in _places(number, name, offsets, "\t".join(cells[2:]), text, report):
            more: dict[str, Any] = parts.get(name, {})
            yield Judgement(SPAN_ASPECT, label, start, end, **more)
    lost["severities and notes of what is no mark"] += len(parts.keys() - marks.keys())
    report.losses.update(+lost)


def _places(
    number: int, name: str, offsets: str, quote: str, text: str, report: Report
) -> Iterator[tuple[int, int]]:
    """The places of the parts of a mark. The texts of the parts have blanks between them."""
    spans = []
    for part in offsets.split(";"):
        places = part.split()
        if len(places) != 2:
            raise RowError(name, f"has no start and end in {shorten(repr(part), 40)}")
        spans.append((whole_number(name, places[0]), whole_number(name, places[1])))
    if len(spans) > 1:
        for reading in READINGS:
            found = [reading.span(text, start, end) for start, end in spans]
            if " ".join(text[max(start, 0) : end] for start, end in found) == quote:
                for first, last in found:
                    place = report.locate(number, name, text, text[first:last], first, last)
                    if place is not None:
                        yield place
                return
    place = report.locate(number, name, text, quote, spans[0][0], spans[-1][1], READINGS)
    if place is not None:
        yield place
