"""Judged translations -> the files of three reward models.

    python -m tasks.translation.reward_modeling.create_rm_files data_dir=FOLDER output_dir=FOLDER

Reads judged_train.jsonl and judged_dev.jsonl (tasks/translation/mqm.py) in data_dir and writes to
output_dir, for each of them:

    span_segments      the words of a translation, after its source: the worst severity of the marks
                       on a word
    omission_segments  the whole translation, after its source: the worst severity of the omissions
    mqm_pairs          translations of the same source: the one with the higher MQM score is better

Words that the rater did not judge get the tag `Ignore`, and the loss leaves them out.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_jsonl, write_text
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.judgements import Judgement
from fgrlhf.reward_utils import load_segmenter
from reward_modeling.segment_files import (
    IGNORE,
    OK,
    TaggedWords,
    segment_file,
    segment_tags,
    tagged_words,
)
from tasks.translation.mqm import WEIGHTS, RatedTranslation, read_rated
from tasks.translation.source import source_words

LEVEL = "word"  # of the spans
SPANS, OMISSIONS, PAIRS = "span_segments", "omission_segments", "mqm_pairs"
FILES = {"train": "judged_train.jsonl", "dev": "judged_dev.jsonl"}


class RMFileSettings(StrictModel):
    """The folder of the judgements and of the files."""

    data_dir: FilePath = Field(description="folder of judged_train.jsonl and judged_dev.jsonl")
    output_dir: FilePath = Field(description="folder of the results")


def severity_tags(text: str, marks: Sequence[Judgement], is_capped: bool) -> list[str]:
    """The tag of every word of a text: the worst severity of the marks on it, or O.

    Args:
      is_capped: the rater has used all marks, so words without a mark are not judged.
    """
    words = load_segmenter().segments(text, LEVEL)
    spans = [replace(mark, label=mark.severity) for mark in marks]
    tags = segment_tags(words, spans, {severity: severity for severity in WEIGHTS})
    if is_capped:
        return [tag if tag in WEIGHTS else IGNORE for tag in tags]
    return tags


def tagged_translation(judgement: RatedTranslation) -> TaggedWords | None:
    """A line of the file of the spans."""
    text = judgement.response
    tags = severity_tags(text, judgement.errors, judgement.is_capped)
    segments = load_segmenter().segments(text, LEVEL)
    prefix = source_words(judgement.prompt, False)
    document = judgement.prompt.meta.get("doc")
    return tagged_words(prefix, text, segments, tags, cluster=document)


def tagged_whole(judgement: RatedTranslation) -> TaggedWords | None:
    """A line of the file of the omissions: a tag for the whole translation."""
    text = judgement.response
    tag = IGNORE
    if judgement.knows_worst_omission:
        tag = judgement.worst_omission or OK
    segments = load_segmenter().segments(text, "whole")
    prefix = source_words(judgement.prompt, False)
    document = judgement.prompt.meta.get("doc")
    return tagged_words(prefix, text, segments, [tag], cluster=document)


def comparison_rows(judgements: Sequence[RatedTranslation]) -> list[dict[str, Any]]:
    """For every source, its translations and the pairs of them with different scores.

    Sources without such a pair are left out.
    """
    by_source: dict[str, list[RatedTranslation]] = {}
    for judgement in judgements:
        by_source.setdefault(judgement.prompt.text, []).append(judgement)
    rows = []
    for source, versions in by_source.items():
        pairs = []
        for i, j in combinations(range(len(versions)), 2):
            difference = versions[i].score - versions[j].score
            if difference:
                pairs.append([i, j] if difference > 0 else [j, i])
        if pairs:
            responses = [version.response for version in versions]
            rows.append({"prompt": source, "responses": responses, "preferences": pairs})
    return rows


def write_files(settings: RMFileSettings) -> None:
    """Write all files, and print the number of rows and tags of each.

    Raises:
      UserError: a file of judgements is malformed, or has no two translations of a source with
        different scores.
    """
    folder = Path(settings.output_dir)
    for split, name in FILES.items():
        source = Path(settings.data_dir) / name
        judgements = read_rated(source)
        for part, tag in ((SPANS, tagged_translation), (OMISSIONS, tagged_whole)):
            text, summary = segment_file(tag(judgement) for judgement in judgements)
            write_text(folder / part / f"{split}.json", text)
            write_json(folder / part / "segmenter.json", load_segmenter().describe())
            print(f"{folder / part / split}.json: {summary}", flush=True)
        rows = comparison_rows(judgements)
        if not rows:
            raise UserError(
                f"{source} has no source with two translations of different scores, so no"
                " pairs can be made: judge several translations of a source"
            )
        write_jsonl(folder / PAIRS / f"{split}.jsonl", rows)
        pairs = sum(len(row["preferences"]) for row in rows)
        print(f"{folder / PAIRS / split}.jsonl: {pairs} pairs of {len(rows)} sources", flush=True)


if __name__ == "__main__":
    run_program(write_files, RMFileSettings)
