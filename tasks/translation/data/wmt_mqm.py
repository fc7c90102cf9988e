"""Judged translations of WMT's MQM data, such as the TED talks of WMT21 (English to German).

    python -m tasks.translation.data.wmt_mqm source=FOLDER data_dir=FOLDER

Reads the one .tsv file in `source`, with the columns

    system doc doc_id seg_id rater source target category severity comment

and one error per row, marked as <v>...</v> in the target, or in the source for an omission. Writes
judged_train.jsonl, judged_dev.jsonl and judged_test.jsonl (tasks/translation/mqm.py), and the
sources as prompts in train.json, dev.json and test.json with the human translation as reference, if
the file has it (the system `ref`). Documents (`doc`) are split, so that no source of a talk is in
two parts.

Rows that cannot be read are left out together with their segment, because a segment that lacks a
mark would count the marked words as right. Their number is printed.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_text, write_json, write_jsonl
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import Count, FilePath, StrictModel
from fgrlhf.data.split import hash_share
from fgrlhf.metrics.clusters import CLUSTER
from fgrlhf.text_types import Prompt
from tasks.translation.mqm import (
    MAJOR,
    MINOR,
    PUNCTUATION,
    RatedTranslation,
    error,
    is_non_translation,
    omission,
    row_of,
)

COLUMNS = (
    *("system", "doc", "doc_id", "seg_id", "rater"),
    *("source", "target", "category", "severity", "comment"),
)
NO_ERROR = "no-error"
HUMAN = "ref"  # the system whose translations are by people
PARTS = {"dev": 0.15, "test": 0.3, "train": 1.0}  # a document's hash is at most this
MARK = re.compile(r"</?v>")


class Settings(StrictModel):
    """Folders of the published and of the prepared files."""

    source: FilePath = Field(description="folder with one .tsv file of MQM judgements")
    data_dir: FilePath = Field(description="folder of the results")
    subset_size: Count | None = Field(
        default=None, description="judged translations of each part, random ones; null: all"
    )
    before_source: str = Field(
        default="", description="before the source of every prompt, such as <2de> for MADLAD"
    )


@dataclass(frozen=True)
class Losses:
    """Segments that were left out: reason -> number."""

    counts: Mapping[str, int]

    def describe(self) -> str:
        if not self.counts:
            return "no segment was left out"
        reasons = [f"{number} because {reason}" for reason, number in sorted(self.counts.items())]
        return f"segments left out: {', '.join(reasons)}"


class RowError(Exception):
    """A row that cannot be read; the message is the reason."""


# ---- rows ----------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a .tsv file.

    Raises:
      UserError: the columns are others, or a row has too few or too many, or cannot be read.
    """
    # Lines end at "\n", "\r\n" or "\r" only; `splitlines` would cut cells at U+2028 and others too.
    text = io.StringIO(read_text(path), newline="")
    lines = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
    header = tuple(next(lines, ()))
    if header != COLUMNS:
        raise UserError(
            f"{path} has the columns {shorten(', '.join(header), 120)}; needed are"
            f" {', '.join(COLUMNS)}, separated by tabs"
        )
    rows = []
    for number, values in enumerate(_readable(path, lines), 2):
        if len(values) != len(COLUMNS):
            raise UserError(
                f"{path}, line {number} has {len(values)} columns instead of {len(COLUMNS)}: it is"
                " damaged. Download the file again"
            )
        rows.append(dict(zip(COLUMNS, values)))
    return rows


def _readable(path: Path, lines: Iterator[list[str]]) -> Iterator[list[str]]:
    """The lines of a table. Raises `UserError` for a cell that is longer than any sentence."""
    try:
        yield from lines
    except csv.Error as error:
        raise UserError(f"{path} is damaged: {shorten(error)}. Download the file again") from None


def marked_span(text: str) -> tuple[str, tuple[int, int] | None]:
    """A text without its marks, and the characters between them; None if there are none.

    White space at the ends of the marked text is left out.

    Raises:
      RowError: the marks are not one pair around some text.
    """
    tags = [match[0] for match in MARK.finditer(text)]
    if not tags:
        return text, None
    if tags != ["<v>", "</v>"]:
        raise RowError("its mark is not one <v>...</v>")
    before, marked, after = MARK.split(text)
    if not marked.strip():
        raise RowError("its mark is empty")
    start = len(before) + len(marked) - len(marked.lstrip())
    return before + marked + after, (start, start + len(marked.strip()))


def severity_of(row: Mapping[str, str]) -> str | None:
    """The severity of an error; None if the row says that there is none.

    A non-translation is major, whatever severity its row has.

    Raises:
      RowError: the severity is unknown.
    """
    if is_non_translation(row["category"]):
        return MAJOR
    severity = row["severity"].strip().lower()
    if severity == NO_ERROR:
        return None
    if severity == "minor" and row["category"].strip().lower() == "fluency/punctuation":
        return PUNCTUATION
    if severity not in (MAJOR, MINOR):
        raise RowError(f"the severity {shorten(repr(row['severity']), 30)} is not known")
    return severity


def rated_segment(rows: Sequence[Mapping[str, str]]) -> RatedTranslation:
    """A segment with the marks of one rater: all rows of one rater, system and source.

    Raises:
      RowError: a row cannot be read, or the rows do not fit together.
    """
    marks = []
    texts = set()
    clean = 0
    for row in rows:
        source, in_source = marked_span(row["source"])
        target, in_target = marked_span(row["target"])
        texts.add((source, target))
        severity = severity_of(row)
        if severity is None:
            clean += 1
            if in_source or in_target:
                raise RowError("a row without an error has a mark")
            continue
        if (in_source is None) == (in_target is None):
            raise RowError("an error is marked in both texts or in none")
        if in_target is not None:
            marks.append(error(*in_target, row["category"].strip() or "Other", severity))
        elif in_source is not None:
            marks.append(omission(*in_source, severity))
    if len(texts) > 1:
        raise RowError("its rows have different texts")
    if clean and marks:
        raise RowError("it has errors and a row without an error")
    ((source, target),) = texts
    if not source.strip() or not target.strip():
        raise RowError("its source or its translation is blank")
    place = {key: rows[0][key] for key in ("doc", "seg_id", "system", "rater")}
    return RatedTranslation.of(Prompt(".".join(place.values()), source, (), place), target, marks)


def read_mqm(path: Path) -> tuple[list[RatedTranslation], Losses]:
    """The judgements of a file, in the order of their first rows, and what was left out."""
    segments: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read_rows(path):
        key = tuple(row[column] for column in ("system", "doc", "doc_id", "seg_id", "rater"))
        segments.setdefault(key, []).append(row)
    judgements = []
    losses: Counter[str] = Counter()
    for rows in segments.values():
        try:
            judgements.append(rated_segment(rows))
        except RowError as error:
            losses[str(error)] += 1
    return judgements, Losses(losses)


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


def prepare(settings: Settings) -> None:
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
    judgements, losses = read_mqm(files[0])
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
    print(losses.describe(), flush=True)


def main() -> None:
    prepare(settings_from(Settings))


if __name__ == "__main__":
    run_main(main)
