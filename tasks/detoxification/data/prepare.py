"""Prompts for RL and labelled texts for two scorers, from the downloaded files.

    python -m tasks.detoxification.data.prepare source=FOLDER data_dir=FOLDER

Reads <source>/prompts.jsonl (RealToxicityPrompts) and <source>/tsd_train.csv (SemEval-2021 task 5:
posts in which people marked toxic characters), as data/download.sh stores them. Writes to data_dir

    train.json, dev.json, test.json          prompts that are toxic enough, for RL and reports
    span_sentences.json                      sentences of posts: does a person's mark touch them?
    rated_texts.json                         texts of other rows: does Perspective rate them .5?

The scorer that rewards learns from the first set of labels and the one that judges from the second,
so they share neither texts nor annotators. A row of RealToxicityPrompts is used for prompts or for
the judge, by a hash of its file name: rows of one web page stay together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json, read_jsonl, write_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.data.importers.files import table
from fgrlhf.data.importers.report import Report
from fgrlhf.data.split import hash_share
from fgrlhf.reward_utils import load_segmenter

TOXIC = 0.5  # a text with this score or more is toxic
RATED_FILE = "prompts.jsonl"
SPANS_FILE = "tsd_train.csv"
# share of the rows, up to which the hash of a row falls into the part
PARTS = {"train": 0.25, "dev": 0.30, "test": 0.40, "judge": 1.0}
HELD_OUT = 0.9  # the posts above this share measure the scorer that rewards


class PrepareSettings(StrictModel):
    """Folders of the prepared data."""

    source: str = Field(description=f"folder with {RATED_FILE} and {SPANS_FILE}")
    data_dir: FilePath = Field(description="folder of the results")
    min_toxicity: float = Field(
        default=TOXIC, ge=0, le=1, description="of a prompt; 0: every prompt with a score"
    )


@dataclass(frozen=True)
class RatedText:
    """A text with its toxicity, from 0 to 1; None where Perspective gave no score."""

    text: str
    toxicity: float | None


@dataclass(frozen=True)
class RatedRow:
    """A row of RealToxicityPrompts: two halves of a sentence on a web page."""

    id: str
    page: str
    prompt: RatedText
    continuation: RatedText

    @property
    def texts(self) -> list[RatedText]:
        """The halves that have a score."""
        return [half for half in (self.prompt, self.continuation) if half.toxicity is not None]


@dataclass(frozen=True)
class MarkedPost:
    """A post and the characters that people marked as toxic."""

    text: str
    marked: frozenset[int]


# ---- reading -------------------------------------------------------------------------------------


def read_rated(path: str | Path) -> list[RatedRow]:
    """The rows of RealToxicityPrompts.

    Raises:
      UserError: a line is not such a row; the message names the line.
    """
    rows = []
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            page = _text(row, "filename")
            begin = row["begin"]
            rows.append(
                RatedRow(f"{page}:{begin}", page, _half(row, "prompt"), _half(row, "continuation"))
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}, row {number} is not a row of RealToxicityPrompts: {shorten(error)}."
                " Download the file again"
            ) from None
    return rows


def _half(row: Any, key: str) -> RatedText:
    half = row[key]
    toxicity = half["toxicity"]
    if toxicity is not None and not (isinstance(toxicity, float | int) and 0 <= toxicity <= 1):
        raise ValueError(f"{key}.toxicity is {toxicity!r}, not a number from 0 to 1")
    return RatedText(_text(half, "text"), toxicity)


def _text(row: Any, key: str) -> str:
    if not isinstance(row[key], str):
        raise ValueError(f"{key} is {row[key]!r:.40}, not a text")
    return row[key]


def read_posts(path: str | Path) -> list[MarkedPost]:
    """The rows of tsd_train.csv: `spans`, a list of character indices, and `text`.

    Raises:
      UserError: a row is not such a row; the message names it.
    """
    posts = []
    for number, row in enumerate(table(path, ("spans", "text"), Report())):
        try:
            text = row["text"]
            marked = parse_json(row["spans"])
            if not isinstance(marked, list) or not all(_is_index(i, text) for i in marked):
                raise ValueError("spans is not a list of character indices of the text")
            posts.append(MarkedPost(text, frozenset(marked)))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{path}, row {number} is not a post with toxic spans: {shorten(error)}. Download"
                " the file again"
            ) from None
    return posts


def _is_index(value: Any, text: str) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(text)


# ---- splitting -----------------------------------------------------------------------------------


def part_of(row: RatedRow) -> str:
    """What a row is used for: train, dev, test or judge."""
    share = hash_share(row.page)
    return next(part for part, limit in PARTS.items() if share <= limit)


def toxic_prompts(
    rows: Sequence[RatedRow], part: str, min_toxicity: float = TOXIC
) -> list[dict[str, str]]:
    """The prompts of a part with at least this toxicity, in a random but fixed order."""
    chosen = []
    for row in rows:
        toxicity = row.prompt.toxicity
        if part_of(row) == part and toxicity is not None and toxicity >= min_toxicity:
            chosen.append(row)
    chosen.sort(key=lambda row: hash_share(row.id))
    return [{"id": row.id, "prompt": row.prompt.text} for row in chosen]


def rated_texts(rows: Sequence[RatedRow]) -> list[dict[str, Any]]:
    """Examples for the judge: its own rows to train on, the rows of prompts to measure it on."""
    examples = []
    for row in rows:
        for half in row.texts:
            toxic = half.toxicity is not None and half.toxicity >= TOXIC
            held_out = part_of(row) != "judge"
            examples.append(_example(half.text, toxic, held_out, group=row.page))
    return examples


def span_sentences(posts: Sequence[MarkedPost]) -> list[dict[str, Any]]:
    """Examples for the scorer that rewards: a sentence is toxic if a mark touches it."""
    segmenter = load_segmenter()
    examples = []
    for number, post in enumerate(posts):
        held_out = hash_share(post.text) > HELD_OUT
        for start, end in segmenter.sentences(post.text):
            toxic = not post.marked.isdisjoint(range(start, end))
            examples.append(_example(post.text[start:end], toxic, held_out, group=f"post {number}"))
    return examples


def _example(text: str, toxic: bool, held_out: bool, group: str) -> dict[str, Any]:
    """A labelled text. Texts of a group are similar: those of one page or of one post."""
    return {"text": text, "toxic": toxic, "held_out": held_out, "group": group}


def prepare(config: PrepareSettings) -> None:
    """Read the downloaded files and write the prepared ones.

    Raises:
      UserError: a file is missing or malformed, or a part has no toxic prompt.
    """
    source = Path(config.source)
    rated = read_rated(source / RATED_FILE)
    posts = read_posts(source / SPANS_FILE)
    folder = Path(config.data_dir)
    for part in ("train", "dev", "test"):
        prompts = toxic_prompts(rated, part, config.min_toxicity)
        if not prompts:
            raise UserError(
                f"{source / RATED_FILE} has no toxic prompt for {part} in its {len(rated)} rows:"
                " use the whole file"
            )
        write_json(folder / f"{part}.json", prompts)
        print(
            f"{folder / f'{part}.json'}: {len(prompts):,} prompts with a toxicity of at least"
            f" {config.min_toxicity}"
        )
    examples = {
        "rated_texts.json": rated_texts(rated),
        "span_sentences.json": span_sentences(posts),
    }
    for name, rows in examples.items():
        write_json(folder / name, rows)
        toxic = sum(row["toxic"] for row in rows)
        print(f"{folder / name}: {len(rows):,} texts, {toxic:,} of them toxic")


if __name__ == "__main__":
    run_program(prepare, PrepareSettings)
