"""Judged translations of WMT's MQM data, such as the TED talks of WMT21 (English to German).

    python -m tasks.translation.data.wmt_mqm source=FOLDER data_dir=FOLDER

Reads the one .tsv file in `source` as `fgrlhf data import from=mqm` does: one error per row, marked
as <v>...</v> in the target, or in the source for an omission. Writes judged_train.jsonl,
judged_dev.jsonl and judged_test.jsonl (tasks/translation/mqm.py), and the sources as prompts in
train.json, dev.json and test.json with the human translation as reference, if the file has it (the
system `ref`). Documents (`doc`) are split, so that no source of a talk is in two parts.

A translation with an error whose mark is not found is left out, because the marked words would
count as right. The number of such translations is printed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import write_json, write_jsonl
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import Count, FilePath, StrictModel
from fgrlhf.data.importers.registry import import_items
from fgrlhf.data.judgements import NO_ERROR, SOURCE, SPAN_ASPECT, JudgedResponse, Judgement
from fgrlhf.data.split import hash_share
from fgrlhf.metrics.clusters import CLUSTER
from fgrlhf.text_types import Prompt
from tasks.translation.mqm import (
    MAJOR,
    MINOR,
    OMISSION,
    PUNCTUATION,
    RatedTranslation,
    is_non_translation,
    row_of,
)

PLACE = ("doc", "seg_id", "system")  # columns that identify a translation
HUMAN = "ref"  # the system whose translations are by people
PARTS = {"dev": 0.15, "test": 0.3, "train": 1.0}  # a document's hash is at most this


class WmtMqmSettings(StrictModel):
    """Folders of the published and of the prepared files."""

    source: FilePath = Field(description="folder with one .tsv file of MQM judgements")
    data_dir: FilePath = Field(description="folder of the results")
    subset_size: Count | None = Field(
        default=None, description="judged translations of each part, random ones; null: all"
    )
    before_source: str = Field(
        default="", description="before the source of every prompt, such as <2de> for MADLAD"
    )


# ---- raters --------------------------------------------------------------------------------------


def read_mqm(path: Path) -> tuple[list[RatedTranslation], Counter[str]]:
    """A translation for each of its raters, and how many were left out, by the reason.

    Raises:
      UserError: the file is no table of MQM, or has no documents or segments.
    """
    items, report = import_items(path, "mqm")
    missing = [name for name in PLACE if name not in items[0].prompt.meta]
    if missing:
        raise UserError(f"{path} has no column `{missing[0]}`, by which its documents are split")
    translations = []
    left_out = Counter(report.losses)
    for item in items:
        by_rater: dict[str, list[Judgement]] = {}
        for judgement in item.judgements:
            by_rater.setdefault(str(judgement.annotator), []).append(judgement)
        for rater, judgements in by_rater.items():
            try:
                translations.append(_rated(item, rater, judgements))
            except ValueError as reason:
                left_out[f"translations {reason}"] += 1
    return translations, left_out


def _rated(item: JudgedResponse, rater: str, judgements: Sequence[Judgement]) -> RatedTranslation:
    """The translation with the marks of a rater.

    Raises:
      ValueError: what the rater found is not known.
    """
    if item.source is None:
        raise ValueError("without a source")
    found = [judgement for judgement in judgements if judgement.label != NO_ERROR]
    if found and len(found) < len(judgements):
        raise ValueError("with errors and a row without an error")
    if any(judgement.span is None for judgement in found):
        raise ValueError("with an error that is not marked as one <v>...</v>")
    place = {name: item.prompt.meta[name] for name in PLACE} | {"rater": rater}
    marks = [_mark(item, judgement) for judgement in found]
    prompt = Prompt(".".join(place.values()), item.source, (), place)
    return RatedTranslation.of(prompt, item.response, marks)


def _mark(item: JudgedResponse, error: Judgement) -> Judgement:
    """An error with the severities of MQM's weights, and without white space at its ends.

    A non-translation is major, whatever severity its row has.

    Raises:
      ValueError: the severity is unknown, or nothing is marked.
    """
    category = str(error.label)
    if category != error.aspect:
        category = f"{error.aspect}/{category}"
    severity = str(error.severity).strip().lower()
    if is_non_translation(category):
        severity = MAJOR
    elif severity == MINOR and category.strip().lower() == "fluency/punctuation":
        severity = PUNCTUATION
    if severity not in (MAJOR, MINOR, PUNCTUATION):
        raise ValueError(f"with the unknown severity {shorten(repr(error.severity), 30)}")
    marked = item.marked(error)
    if not marked.strip():
        raise ValueError("with an empty mark")
    start, end = error.place
    start += len(marked) - len(marked.lstrip())
    end -= len(marked) - len(marked.rstrip())
    label = OMISSION if error.side == SOURCE else category.strip()
    return Judgement(SPAN_ASPECT, label, start, end, severity, side=error.side)


# ---- files ---------------------------------------------------------------------------------------


def part_of(document: str) -> str:
    """train, dev or test: a pure function of the document's name."""
    share = hash_share(document)
    return next(part for part, limit in PARTS.items() if share <= limit)


def references_of(judgements: Sequence[RatedTranslation]) -> dict[str, str]:
    """Source -> its human translation, for sources that have one."""
    references: dict[str, str] = {}
    for judgement in judgements:
        if judgement.prompt.meta["system"] == HUMAN:
            references.setdefault(judgement.prompt.text, judgement.response)
    return references


def prompt_rows(
    judgements: Sequence[RatedTranslation], references: Mapping[str, str], before: str = ""
) -> list[dict[str, Any]]:
    """The different sources, with their references.

    Args:
      references: source -> its human translation.
      before: the first word of every prompt.
    """
    rows: dict[str, dict[str, Any]] = {}
    for judgement in judgements:
        meta = judgement.prompt.meta
        source = judgement.prompt.text
        row: dict[str, Any] = {
            "id": f"{meta['doc']}.{meta['seg_id']}",
            "prompt": f"{before} {source}".strip(),
            CLUSTER: meta["doc"],  # segments of a talk are alike
        }
        if source in references:
            row["references"] = [references[source]]
        rows.setdefault(source, row)
    return list(rows.values())


def prepare(settings: WmtMqmSettings) -> None:
    """Read the file and write the parts.

    Raises:
      UserError: there is not one .tsv file, it is malformed, or a part would be empty.
    """
    source, folder = Path(settings.source), Path(settings.data_dir)
    files = sorted(source.glob("*.tsv"))
    if len(files) != 1:
        raise UserError(
            f"{source} has {len(files)} .tsv files; one is needed, with the judgements of one pair"
            " of languages"
        )
    judgements, left_out = read_mqm(files[0])
    for part in PARTS:
        chosen = [x for x in judgements if part_of(x.prompt.meta["doc"]) == part]
        if not chosen:
            raise UserError(
                f"{files[0]}: no document falls into the part {part}, because it has too few"
                " documents: use the whole file"
            )
        references = references_of(chosen)  # also of human translations outside the subset
        if settings.subset_size is not None:
            chosen.sort(key=lambda judgement: hash_share(judgement.prompt.id))
            chosen = chosen[: settings.subset_size]
        write_jsonl(folder / f"judged_{part}.jsonl", [row_of(x) for x in chosen])
        prompts = prompt_rows(chosen, references, settings.before_source)
        write_json(folder / f"{part}.json", prompts)
        marks = sum(len(x.spans) for x in chosen)
        capped = sum(x.is_capped for x in chosen)
        documents = len({x.prompt.meta["doc"] for x in chosen})
        print(
            f"{folder / f'judged_{part}.jsonl'}: {len(chosen):,} translations of {len(prompts):,}"
            f" sources in {documents} documents, {marks:,} marks, {capped} judged in part",
            flush=True,
        )
    for what, count in left_out.most_common():
        print(f"left out, {what}: {count:,}", flush=True)


if __name__ == "__main__":
    run_program(prepare, WmtMqmSettings)
