"""Ratings of translations in the two forms of mt-metrics-eval (MTME)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json, read_text
from fgrlhf.base.records import Problem, RowError, check_list, check_object, check_text
from fgrlhf.data.importers.files import (
    any_number,
    numbered,
    optional_text,
    read_objects,
    row_id,
    whole_number,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.importers.translations import MQM, UNPLACED, category_parts, is_no_error
from fgrlhf.data.judgements import NO_ERROR, RESPONSE, SOURCE, JudgedResponse, Judgement
from fgrlhf.text_types import Prompt

RATINGS = ".rating"  # the end of the name of a file of an evaluation set
NONE = "None"  # in place of a rating
ERROR = "error"  # the label of an error without a category or severity
PLACE = ("document_id", "segment_id", "system_id", "src_lang", "tgt_lang")


@dataclass
class _Translation:
    """A translation, with the judgements of all raters."""

    number: int
    source: str
    target: str
    meta: dict[str, Any]
    judgements: list[Judgement] = field(default_factory=list)


def mtme(path: str | Path, report: Report) -> list[JudgedResponse]:
    """MTME's ratings: `{source, hypothesis, errors, rater_id, ...}`, or a file `*.rating`.

    Documented in github.com/google-research/mt-metrics-eval. An error is `{start, end, category,
    severity, score, is_source_error}`, with code points of the translation or, with
    `is_source_error`, of the source. A category `Fluency/Punctuation` becomes the aspect and the
    label. A rating without errors is the judgement `no error` of its rater. An error whose place is
    empty or outside its text is kept without it, so that the translation does not seem right.

    A line of `LP.NAME.seg.rating` in `human-scores` has a system, the rating as JSON and perhaps
    the rater, with tabs between them; the lines of each system are in the order of the segments.
    The texts are in `sources/LP.txt` and `system-outputs/LP/SYSTEM.txt`. Without a rater, NAME is
    the rater.
    """
    translations: dict[tuple[Any, ...], _Translation] = {}
    if str(path).endswith(RATINGS):
        _read_ratings(Path(path), translations, report)
    else:

        def read(number: int, row: Mapping[str, Any], report: Report) -> None:
            _add(number, row, translations, report)

        read_objects(path, read, report)
    items = []
    for translation in translations.values():
        place = [str(value) for value in translation.meta.values() if value is not None]
        prompt = Prompt(row_id("/".join(place), translation.number), "", meta=translation.meta)
        source = translation.source if translation.source.strip() else None
        judgements = tuple(translation.judgements)
        items.append(JudgedResponse(prompt, translation.target, judgements, source))
    return items


def _add(
    number: int,
    row: Mapping[str, Any],
    translations: dict[tuple[Any, ...], _Translation],
    report: Report,
) -> None:
    """Add a rating to the others of its translation."""
    source = check_text("source", row.get("source"), may_be_blank=True)
    target = check_text("hypothesis", row.get("hypothesis"), may_be_blank=True)
    if not report.has_response(number, "hypothesis", target):
        return
    rater = row.get("rater_id")
    annotator = optional_text("rater_id", None if rater is None else str(rater))
    texts = {RESPONSE: target, SOURCE: source}
    judgements = list(_judgements(number, row.get("errors"), annotator, texts, report))
    used = ("source", "hypothesis", "errors", "rater_id")
    meta = {key: value for key, value in row.items() if key not in used and value is not None}
    place = tuple(str(row.get(key)) for key in PLACE)
    new = _Translation(number, source, target, meta)
    translation = translations.setdefault((*place, source, target), new)
    translation.judgements += judgements


def _judgements(
    number: int, errors: Any, annotator: str | None, texts: Mapping[str, str], report: Report
) -> Iterator[Judgement]:
    """The judgements of one rating. `texts` has the text of each side."""
    values = check_list("errors", errors)
    if not values:
        yield Judgement(MQM, NO_ERROR, annotator=annotator)
    for i, value in enumerate(values):
        key = f"errors[{i}]"
        error = check_object(key, value)
        start = whole_number(f"{key}.start", error.get("start"))
        end = whole_number(f"{key}.end", error.get("end"))
        category = optional_text(f"{key}.category", error.get("category")) or ""
        severity = optional_text(f"{key}.severity", error.get("severity"))
        if is_no_error(category) or is_no_error(severity or ""):
            yield Judgement(MQM, NO_ERROR, annotator=annotator)
            continue
        aspect, label = MQM, severity or ERROR
        if category.strip(" /"):
            aspect, label = category_parts(category)
        parts: dict[str, Any] = {"severity": severity, "annotator": annotator}
        if error.get("score") is not None:
            parts["score"] = any_number(f"{key}.score", error["score"])
        side = SOURCE if error.get("is_source_error") else RESPONSE
        span = report.locate(number, key, texts[side], None, start, end)
        if span is None:
            report.notes[UNPLACED] += 1
        else:
            parts |= {"start": span[0], "end": span[1], "side": side}
        yield Judgement(aspect, label, **parts)


def _read_ratings(
    path: Path, translations: dict[tuple[Any, ...], _Translation], report: Report
) -> None:
    """Read a file of an evaluation set, with the texts of its folder."""
    languages, _, rest = path.name.partition(".")
    name = rest.removesuffix(RATINGS).removesuffix(".seg")
    root = path.resolve().parent.parent
    sources = _lines(path, root / "sources" / f"{languages}.txt")
    outputs: dict[str, list[str]] = {}
    places: dict[str, int] = {}  # system -> the number of its next segment
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    for number, line in numbered(lines, report):
        try:
            cells = line.strip().split("\t")
            if len(cells) not in (2, 3):
                raise RowError("row", f"must have 2 or 3 cells with tabs between, has {len(cells)}")
            system = cells[0]
            if system not in outputs:
                if Path(system).name != system:
                    raise RowError("row", f"{shorten(repr(system), 60)} is not the name of a file")
                file = root / "system-outputs" / languages / f"{system}.txt"
                outputs[system] = _lines(path, file)
            segment = places.get(system, 0)
            places[system] = segment + 1
            if segment >= min(len(sources), len(outputs[system])):
                raise RowError("row", f"is segment {segment} of {system}, which has no text")
            if cells[1] == NONE:
                continue
            row = {
                "source": sources[segment],
                "hypothesis": outputs[system][segment],
                "errors": _rating(cells[1]).get("errors"),
                "rater_id": cells[2] if len(cells) == 3 else name,
                "segment_id": segment,
                "system_id": system,
            }
            _add(number, row, translations, report)
        except RowError as error:
            report.malformed.append(Problem(number, error.key, error.reason))


def _rating(text: str) -> Mapping[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise RowError("rating", f"is not JSON: {shorten(error)}") from None
    return check_object("rating", value)


def _lines(path: Path, file: Path) -> list[str]:
    """The lines of a text file of an evaluation set.

    Raises:
      UserError: there is no such file.
    """
    if not file.is_file():
        raise UserError(
            f"{shorten(path)} has no texts, and {shorten(file)}, which should have them, does not"
            " exist: leave the file in its folder of mt-metrics-eval, or make standalone ratings"
            " with its converter evalset_ratings_to_standalone"
        )
    return read_text(file).removesuffix("\n").split("\n")
