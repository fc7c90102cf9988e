"""UIMA CAS: the form in which INCEpTION and other tools write annotations."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json
from fgrlhf.base.records import Problem, RowError, check_text
from fgrlhf.data.importers.clean_answers import UNMARKED, with_clean_answers
from fgrlhf.data.importers.files import numbered, optional_text
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import NO_ERROR, JudgedResponse, Judgement
from fgrlhf.text_types import Prompt

TYPES_FILE = "TypeSystem.xml"
XMI, JSON = ".xmi", ".json"
TYPES_KEY = "%TYPES"  # of a JSON file
UNANNOTATED = "INITIAL_CAS"  # the name of the file without annotations in an export of a project
# beginnings of the names of types that a tool or a linguistic analysis makes
TECHNICAL = (
    "uima.",
    "de.tudarmstadt.ukp.inception.",
    "de.tudarmstadt.ukp.clarin.webanno.",
    *[
        f"de.tudarmstadt.ukp.dkpro.core.api.{part}."
        for part in ("segmentation", "metadata", "lexmorph", "syntax", "morph", "structure")
    ],
)
RELATION = ("Governor", "Dependent")  # features of a relation between two annotations
OFFSETS = ("begin", "end", "sofa")
LABELS = ("label", "value", "kind", "category", "type")  # features with the label, the usual first
# feature -> the part of the judgement that it gives
PARTS = {
    "severity": "severity",
    "reason": "reason",
    "comment": "reason",
    "note": "reason",
    "evidence": "evidence",
}
UNMAPPED = re.compile(r"external offset \[(-?\d+)\]")  # in a warning of the package


def uima(
    path: str | Path,
    report: Report,
    layer: str | None = None,
    annotator: str | None = None,
    confirmed: bool = False,
) -> list[JudgedResponse]:
    """UIMA CAS as XMI with its TypeSystem.xml, or as JSON; a file, or a folder of documents.

    The package dkpro-cassis reads them (`pip install dkpro-cassis`, run with 0.12). Offsets are
    UTF-16 code units in both forms, which the package converts. INCEpTION exports a project as
    folders `annotation/DOCUMENT` with a zip file of each annotator: unpack these, and give the
    folder. The name of a file is the annotator then; INITIAL_CAS has nobody's annotations. If the
    files of a folder have different texts, they are documents, which are named after them.

    Every annotation becomes a judgement, except those of linguistic analyses, such as tokens, and
    relations. The aspect is the name of its type without the package (`Error` of
    webanno.custom.Error). The label is its feature label, value, kind, category or type, else its
    first other text; severity, evidence and reason (or comment, note) are those parts. Other
    features are lost. What is annotated without a place is of the whole document.

    A file without annotations can be one that nobody has finished.

    Args:
      layer: the only type to read, by its whole name or without the package.
      annotator: who made the annotations of a single file.
      confirmed: all files are finished, so one without an annotation is `no error`.

    Raises:
      UserError: the package is not installed, or a file cannot be read.
    """
    files = _files(Path(path))
    read: list[tuple[Path, str, list[Judgement]]] = []
    systems: dict[Path, Any] = {}
    for number, file in numbered(files, report):
        if file.stem == UNANNOTATED:
            report.notes[f"files {UNANNOTATED}, which nobody has annotated"] += 1
            continue
        view, unmapped = _load(file, systems, report)
        try:
            text = check_text("sofaString", view.sofa_string or "", may_be_blank=True)
            if not report.has_response(number, file.name, text):
                continue
            found = _annotations(number, view, text, layer, unmapped, report)
        except RowError as error:
            report.malformed.append(Problem(number, f"{file.name}: {error.key}", error.reason))
            continue
        if found is None and not confirmed:
            report.notes[
                "files without an annotation, not read as `no error` (confirmed=true)"
            ] += 1
        clean = [Judgement(UNMARKED, NO_ERROR)] if confirmed else []
        read.append((file, text, clean if found is None else found))
    texts: dict[Path, set[str]] = {}  # of each folder
    for file, text, _ in read:
        texts.setdefault(file.parent, set()).add(text)
    documents: dict[tuple[str, str], list[Judgement]] = {}  # name and text -> of all annotators
    for file, text, judgements in read:
        are_annotators = Path(path).is_dir() and len(texts[file.parent]) == 1
        name = file.parent.name if are_annotators else file.stem
        who = file.stem if are_annotators and annotator is None else annotator
        judged = [replace(judgement, annotator=who) for judgement in judgements]
        documents.setdefault((name, text), []).extend(judged)
    items = [
        JudgedResponse(Prompt(name, ""), text, tuple(judgements))
        for (name, text), judgements in documents.items()
    ]
    return with_clean_answers(items, None if layer is None else _short(layer), report)


def _files(path: Path) -> list[Path]:
    """The file, or the files of a folder in the order of their names."""
    if not path.exists():
        raise UserError(f"{shorten(path)} does not exist: check the path")
    if not path.is_dir():
        if path.suffix not in (XMI, JSON):
            raise UserError(
                f"{shorten(path)} is neither a {XMI} nor a {JSON} file, in which a CAS is read:"
                " unpack a zip file first"
            )
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in (XMI, JSON))
    if not files:
        raise UserError(f"{shorten(path)} has no {XMI} or {JSON} file: unpack its zip files first")
    return files


def _load(file: Path, systems: dict[Path, Any], report: Report) -> tuple[Any, set[int]]:
    """The CAS in a file, in its first view with a text, and offsets that were not converted.

    Args:
      systems: the type systems that were read, by their files.
    """
    try:
        import cassis
    except ImportError:
        raise UserError(
            "from=uima needs the package dkpro-cassis: pip install 'dkpro-cassis>=0.12'"
        ) from None
    types = file.parent / TYPES_FILE
    if file.suffix == XMI and not types.is_file():
        raise UserError(f"{shorten(file)} needs {TYPES_FILE} in its folder: export them together")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if types not in systems and types.is_file():
                with open(types, "rb") as stream:
                    systems[types] = cassis.load_typesystem(stream)
            with open(file, "rb") as stream:
                if file.suffix == JSON:
                    cas = _load_json(stream.read(), systems.get(types))
                else:
                    cas = cassis.load_cas_from_xmi(stream, typesystem=systems[types])
        except Exception as error:  # the package lets every kind of error of damaged files through
            reason = shorten(f"{type(error).__name__}: {error}", 200)
            hint = f"; try XMI with {TYPES_FILE}" if file.suffix == JSON else ""
            raise UserError(f"{shorten(file)} is no readable CAS: {reason}{hint}") from None
    matches = [UNMAPPED.search(str(warning.message)) for warning in caught]
    with_text = [view.sofa.sofaID for view in cas.views if view.sofa.sofaString]
    if len(with_text) > 1:
        report.losses["further views of documents"] += len(with_text) - 1
    if with_text:
        cas = cas.get_view(with_text[0])
    return cas, {int(match[1]) for match in matches if match is not None}


def _load_json(content: bytes, types: Any) -> Any:
    """The CAS in a JSON file, which may be written without its types."""
    import cassis

    text = content.decode("utf-8-sig")
    has_types = TYPES_KEY in parse_json(text)
    if not has_types and types is None:
        raise ValueError(f"it has no {TYPES_KEY}, and {TYPES_FILE} is not in its folder")
    return cassis.load_cas_from_json(text, typesystem=types, merge_typesystem=has_types)


def _short(name: str) -> str:
    """The name of a type without its package."""
    return name.rpartition(".")[2]


def _annotations(
    number: int, view: Any, text: str, layer: str | None, unmapped: set[int], report: Report
) -> list[Judgement] | None:
    """The judgements in a CAS; None if it has no annotation, found or not."""
    judgements = []
    is_empty = True
    for annotation in view.select_all_fs():
        name = annotation.type.name
        short = _short(name)
        features = [feature.name for feature in annotation.type.all_features]
        if layer not in (None, name, short) or (layer is None and name.startswith(TECHNICAL)):
            continue
        if any(feature in features for feature in RELATION):
            report.losses["relations"] += 1
            continue
        is_empty = False
        parts = _parts(short, annotation, features, report)
        if "begin" not in features:  # of the whole document
            judgements.append(Judgement(short, **parts))
            continue
        begin, end = annotation.begin, annotation.end
        if not all(isinstance(place, int) and place not in unmapped for place in (begin, end)):
            begin = end = len(text) + 1  # nobody knows which place it is
        span = report.locate(number, short, text, None, begin, end)
        if span is not None:
            judgements.append(Judgement(short, start=span[0], end=span[1], **parts))
    return None if is_empty else sorted(judgements, key=lambda judgement: judgement.span or (0, 0))


def _parts(short: str, annotation: Any, features: Sequence[str], report: Report) -> dict[str, Any]:
    """The label and the other parts of an annotation, from its features."""
    texts: dict[str, str] = {}
    for feature in features:
        value = getattr(annotation, feature, None)
        if feature in OFFSETS or value is None:
            continue
        if isinstance(value, str):
            text = optional_text(f"{short}.{feature}", value)
            if text is not None:
                texts[feature] = text
        else:
            report.losses[f"values of the feature {shorten(f'{short}.{feature}', 60)}"] += 1
    others = [feature for feature in texts if feature not in PARTS]
    label = next((name for name in LABELS if name in texts), others[0] if others else None)
    parts: dict[str, Any] = {"label": short if label is None else texts[label]}
    if label is not None:
        report.notes[f"labels from the feature {shorten(f'{short}.{label}', 60)}"] += 1
    for feature, text in texts.items():
        part = PARTS.get(feature)
        if part is not None and part not in parts:
            parts[part] = text
        elif feature != label:
            report.losses[f"values of the feature {shorten(f'{short}.{feature}', 60)}"] += 1
    return parts
