"""Every importer, by the name that `fgrlhf data import from=...` takes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.records import refuse_rows
from fgrlhf.data.format import Format
from fgrlhf.data.formats import COMPARISONS, JUDGEMENTS
from fgrlhf.data.importers import (
    argilla,
    brat,
    doccano,
    hallucinations,
    helpsteer,
    label_studio,
    mtme,
    mushroom,
    pairwise,
    potato,
    prodigy,
    rated_answers,
    steps,
    toxic,
    translations,
    uima,
)
from fgrlhf.data.importers.report import Report
from fgrlhf.data.judgements import JudgedResponse
from fgrlhf.metrics.clusters import CLUSTER


@dataclass(frozen=True)
class Importer:
    """A published format.

    Args:
      read: (file or folder, report, keys) -> its items. It reports what it drops and which rows
        are malformed, and raises `UserError` if the file cannot be read.
      format: the row format of the items.
      beside: names of the files that it also reads if they are in the file's folder.
      keys: further arguments of `read`, which are keys of the command.
      cluster: keys of its rows that name a document or another unit that rows share, the first one
        that a row has; the rows get it as `cluster`.
      instead: what to do if the file is a CSV table, which is not read; "" if the format is one.
    """

    read: Callable[..., Sequence[Any]]
    format: Format[Any] = JUDGEMENTS
    beside: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    instead: str = "Choose another from=..., or download the JSON form of the data"


TABLES = (".csv", ".tsv")
MOST_FIRST_LINE = 100  # characters that are read of a first line
AS_JSON = "Export the project as JSON, which has the structure of the answers"

DOCUMENTS = ("document_id", "doc_id", "doc", "document")

IMPORTERS: dict[str, Importer] = {
    "mqm": Importer(translations.mqm, cluster=DOCUMENTS, instead=""),
    "mqm_json": Importer(translations.mqm_json, cluster=DOCUMENTS),
    "esa": Importer(
        translations.esa,
        cluster=DOCUMENTS,
        instead="The tables of each wave have no texts. The authors' repository joins them with the"
        " texts: import its wmt24_esa.jsonl",
    ),
    "mtme": Importer(mtme.mtme, cluster=DOCUMENTS),
    "ragtruth": Importer(
        hallucinations.ragtruth, beside=(hallucinations.SOURCES_FILE,), cluster=("source_id",)
    ),
    "haluquestqa": Importer(hallucinations.haluquestqa, instead=""),
    "xsum_hallucinations": Importer(hallucinations.xsum, cluster=("bbcid",), instead=""),
    "defacto": Importer(hallucinations.defacto),
    "fava": Importer(hallucinations.fava),
    "mushroom": Importer(mushroom.mushroom),
    "factscore": Importer(rated_answers.factscore, cluster=("topic",)),
    "feedback_qa": Importer(rated_answers.feedback_qa),
    "toxic_spans": Importer(toxic.toxic_spans, instead=""),
    "toxic_spans_raw": Importer(toxic.toxic_spans_raw, instead=""),
    "prm800k": Importer(steps.prm800k),
    "math_shepherd": Importer(steps.stepwise),
    "trl_stepwise": Importer(steps.stepwise),
    "processbench": Importer(steps.processbench),
    "mr_gsm8k": Importer(steps.mr_gsm8k),
    "big_bench_mistake": Importer(steps.big_bench_mistake),
    "helpsteer3_preference": Importer(helpsteer.preference, COMPARISONS),
    "helpsteer3_feedback": Importer(helpsteer.feedback),
    "helpsteer3_edit": Importer(helpsteer.edit),
    "label_studio": Importer(
        label_studio.label_studio, keys=("aspect", "project"), instead=AS_JSON
    ),
    "label_studio_pairwise": Importer(
        pairwise.label_studio_pairwise, COMPARISONS, keys=("project",), instead=AS_JSON
    ),
    "argilla": Importer(argilla.argilla, instead=f"{AS_JSON} (`records.to_json`)"),
    "potato": Importer(potato.potato, keys=("items", "aspect")),
    "prodigy": Importer(prodigy.prodigy),
    "spacy": Importer(prodigy.spacy, keys=("confirmed", "annotator")),
    "uima": Importer(
        uima.uima, beside=(uima.TYPES_FILE,), keys=("layer", "annotator", "confirmed")
    ),
    "brat": Importer(brat.brat, keys=("annotator", "confirmed")),
    "doccano": Importer(
        doccano.doccano,
        keys=("offsets", "confirmed", "annotator", "corrections"),
        instead="Export the project as JSONL: the table joins several labels into one text",
    ),
}


# names of tools and formats that are no importer -> what to do
BY_COLUMNS = (
    "has no import: read its rows by their keys, as `fgrlhf data convert IN OUT format=spans"
)
UNPAIRED_ROWS = (
    "needs no import: `fgrlhf dpo` reads its rows with data.pairs=unpaired, and"
    " `fgrlhf data convert IN OUT format=unpaired to=joined` makes comparisons of them"
)
NO_IMPORT = {
    "webanno": "has no import, since it lacks the text between sentences: export the project as"
    " UIMA CAS XMI or JSON, and give from=uima",
    "lighttag": f"{BY_COLUMNS} 'columns={{response: content, spans: annotations, spans.label: tag,"
    " spans.quote: value}'` does with those under `annotations_and_examples`",
    "ubiai": f"{BY_COLUMNS} 'columns={{response: document, spans: tokens, spans.label: entityLabel,"
    " spans.quote: text}'` does",
    "sharegpt": "needs no import: demonstrations and comparisons are read with these keys, as"
    " `fgrlhf data check FILE format=demonstrations` does",
    "unpaired": UNPAIRED_ROWS,
    "kto": UNPAIRED_ROWS,
    "json_min": "is read with from=label_studio project=FILE",
}
NO_IMPORT |= dict.fromkeys(["inception", "webanno_tsv"], NO_IMPORT["webanno"])
TSV_HEADER = "#FORMAT=WebAnno TSV"  # the first line of such a file

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
    if str(source).endswith(TABLES) and _first_line(source).startswith(TSV_HEADER):
        raise UserError(f"{shorten(source)}: WebAnno TSV {NO_IMPORT['webanno']}")
    if importer.instead and str(source).endswith(TABLES):
        raise UserError(
            f"{shorten(source)} is a table, and {name} is read from other files. {importer.instead}"
        )
    items = list(importer.read(source, report, **settings))
    items = [_without_written_keys(item, importer.format.name, report) for item in items]
    items = [_without_outer_blanks(item, report) for item in items]
    items = [_with_cluster(item, importer.cluster) for item in items]
    refuse_rows(
        [replace(problem, file=str(source)) for problem in report.malformed], f"read as {name}"
    )
    if not items:
        raise UserError(
            f"{source} has no row of {name} that could be imported: "
            + ("; ".join(report.lines()) or "it is empty")
        )
    return items, report


def _first_line(source: str | Path) -> str:
    """The first line of a file; "" if it cannot be read."""
    try:
        with open(source, encoding="utf-8-sig") as file:
            return file.readline(MOST_FIRST_LINE)
    except (OSError, ValueError):
        return ""


def _with_cluster(item: Any, keys: Sequence[str]) -> Any:
    """The item with the name of what its row shares with others, unless it has one."""
    meta = item.prompt.meta
    names = [meta[key] for key in keys if isinstance(meta.get(key), str | int) and meta[key] != ""]
    if not names or CLUSTER in meta:
        return item
    return replace(item, prompt=replace(item.prompt, meta={**meta, CLUSTER: str(names[0])}))


def _without_outer_blanks(item: Any, report: Report) -> Any:
    """The item with names that have no blanks around them: "Major " and "Major" mean the same."""
    if not isinstance(item, JudgedResponse):
        return item
    judgements = []
    for judgement in item.judgements:
        names = {}
        for part in ("aspect", "label", "severity"):
            name = getattr(judgement, part)
            if name is not None and name != name.strip():
                report.notes[f"blanks around the name of a {part}, removed"] += 1
                names[part] = name.strip()
        judgements.append(replace(judgement, **names) if names else judgement)
    return replace(item, judgements=tuple(judgements))


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
