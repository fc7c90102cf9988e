"""Every importer, by the name that `fgrlhf data import from=...` takes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fgrlhf.data.checks import refuse_rows
from fgrlhf.data.format import Format
from fgrlhf.data.formats import COMPARISONS, JUDGEMENTS
from fgrlhf.data.importers import (
    doccano,
    hallucinations,
    helpsteer,
    mtme,
    mushroom,
    potato,
    prodigy,
    steps,
    tools,
    toxic,
    translations,
    uima,
    unpaired,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.errors import UserError


@dataclass(frozen=True)
class Importer:
    """A published format.

    Args:
      read: (file or folder, report, keys) -> its items. It reports what it drops and which rows
        are malformed, and raises `UserError` if the file cannot be read.
      format: the row format of the items.
      beside: names of the files that it also reads if they are in the file's folder.
      keys: further arguments of `read`, which are keys of the command.
    """

    read: Callable[..., Sequence[Any]]
    format: Format[Any] = JUDGEMENTS
    beside: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


IMPORTERS: dict[str, Importer] = {
    "mqm": Importer(translations.mqm),
    "mqm_json": Importer(translations.mqm_json),
    "esa": Importer(translations.esa),
    "mtme": Importer(mtme.mtme),
    "ragtruth": Importer(hallucinations.ragtruth, beside=(hallucinations.SOURCES_FILE,)),
    "haluquestqa": Importer(hallucinations.haluquestqa),
    "xsum_hallucinations": Importer(hallucinations.xsum),
    "defacto": Importer(hallucinations.defacto),
    "fava": Importer(hallucinations.fava),
    "mushroom": Importer(mushroom.mushroom),
    "toxic_spans": Importer(toxic.toxic_spans),
    "toxic_spans_raw": Importer(toxic.toxic_spans_raw),
    "prm800k": Importer(steps.prm800k),
    "math_shepherd": Importer(steps.stepwise),
    "trl_stepwise": Importer(steps.stepwise),
    "processbench": Importer(steps.processbench),
    "mr_gsm8k": Importer(steps.mr_gsm8k),
    "big_bench_mistake": Importer(steps.big_bench_mistake),
    "helpsteer3_preference": Importer(helpsteer.preference, COMPARISONS),
    "helpsteer3_feedback": Importer(helpsteer.feedback),
    "helpsteer3_edit": Importer(helpsteer.edit),
    "unpaired": Importer(unpaired.unpaired, COMPARISONS),
    "label_studio": Importer(tools.label_studio, keys=("aspect", "project")),
    "argilla": Importer(tools.argilla),
    "potato": Importer(potato.potato, keys=("items", "aspect")),
    "prodigy": Importer(prodigy.prodigy),
    "spacy": Importer(prodigy.spacy, keys=("confirmed", "annotator")),
    "uima": Importer(
        uima.uima, beside=(uima.TYPES_FILE,), keys=("layer", "annotator", "confirmed")
    ),
    "doccano": Importer(doccano.doccano, keys=("offsets", "confirmed", "annotator", "corrections")),
}


# Keys with a meaning in the written rows. A key of the source with such a name cannot be kept: a
# `source` of "reddit", for example, would be read as the text from which the response was made.
WRITTEN_KEYS = {
    JUDGEMENTS.name: ("id", "prompt", "response", "source", "judgements", "references"),
    COMPARISONS.name: (
        "id",
        "prompt",
        "responses",
        "preferences",
        "marked",
        "margins",
        "references",
    ),
}


def import_items(
    source: str | Path, name: str, settings: Mapping[str, Any] | None = None
) -> tuple[list[Any], Report]:
    """The items of a published file, and the report of the import.

    Args:
      source: the file, or the folder for formats of several files.
      name: of the format, a key of `IMPORTERS`.
      settings: keys of this format with their values.

    Raises:
      UserError: the format has no such key, the file cannot be read, rows do not have the
        structure of the format (all of them are listed), or nothing is left.
    """
    report = Report()
    importer = IMPORTERS[name]
    settings = settings or {}
    check_keys(name, importer.keys, settings)
    items = list(importer.read(source, report, **settings))
    items = [_without_written_keys(item, importer.format.name, report) for item in items]
    refuse_rows(source, [str(problem) for problem in report.malformed], f"read as {name}")
    if not items:
        raise UserError(
            f"{source} has no row of {name} that could be imported: "
            + ("; ".join(report.lines()) or "it is empty")
        )
    return items, report


def check_keys(name: str, keys: Sequence[str], given: Iterable[str]) -> None:
    """Raise `UserError` if a key is given that the format `name` does not have."""
    for key in given:
        if key not in keys:
            known = ", ".join(keys) or "none"
            raise UserError(f"{name} has no key {key}; its own keys are: {known}")


def _without_written_keys(item: Any, format_name: str, report: Report) -> Any:
    """The item without further keys of its row that have another meaning in the written row."""
    meta = {}
    for key, value in item.prompt.meta.items():
        if key not in WRITTEN_KEYS[format_name]:
            meta[key] = value
        elif value is not None:
            loss = f"values of the key `{key}`, which means something else in rows of {format_name}"
            report.losses[loss] += 1
    return replace(item, prompt=replace(item.prompt, meta=meta))
