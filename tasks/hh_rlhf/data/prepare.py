"""Prompts, pairs and demonstrations from files of comparisons.

    python -m tasks.hh_rlhf.data.prepare source=FOLDER_OR_FILE data_dir=FOLDER [subset_size=2000]

Reads every .jsonl, .json, .gz and .parquet file of `source` as comparisons: HH-RLHF, or any rows
that docs/data_formats.md describes. Rows in which an answer goes on with further turns of the
dialog are removed, and then blank, identical, contradicted and repeated pairs.
Writes to data_dir

    train.json, dev.json, test.json            prompts, for RL and evaluation
    train_pairs.json, dev_pairs.json, test_pairs.json    comparisons, for reward models and DPO
    sft.json                                   the preferred answers to training prompts

A dialog belongs to train, dev or test by a hash of the user's first message, so dialogs with the
same beginning stay together.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import Count, FilePath, StrictModel
from fgrlhf.data.comparisons import Comparison
from fgrlhf.data.explore import drop_pairs
from fgrlhf.data.formats import COMPARISONS, DEMONSTRATIONS, PROMPTS, Demonstration
from fgrlhf.data.read import check_not_input
from fgrlhf.data.split import hash_share
from fgrlhf.models.dialogs import TURN
from fgrlhf.text_types import USER, Prompt

SUFFIXES = (".jsonl", ".json", ".gz", ".parquet")
# share of the dialogs, up to which the hash of a dialog falls into the part
PARTS = {"train": 0.8, "dev": 0.9, "test": 1.0}
FILTERS = ("blank", "identical", "contradicted", "duplicates")


class PrepareSettings(StrictModel):
    """Which rows to use."""

    source: str = Field(description="file of comparisons, or a folder with such files")
    data_dir: FilePath = Field(description="folder of the results")
    subset_size: Count | None = Field(
        default=None, description="use only so many rows, chosen by a hash; null: all"
    )


def source_files(source: Path) -> list[Path]:
    """The files to read, in alphabetic order.

    Raises:
      UserError: there is none.
    """
    if source.is_file():
        return [source]
    files = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES)
    if not files:
        raise UserError(
            f"{source} has no file of comparisons ({', '.join(SUFFIXES)}): fetch HH-RLHF with"
            " tasks/hh_rlhf/data/download.sh, or name another folder with source=..."
        )
    return files


def read_comparisons(settings: PrepareSettings) -> list[Comparison]:
    """All rows of the source, with ids that are unique over its files."""
    source = Path(settings.source)
    comparisons = []
    for path in source_files(source):
        name = path.relative_to(source).as_posix() if source.is_dir() else path.name
        for row in COMPARISONS.read(path):
            comparisons.append((f"{name}:{row.prompt.id}", row))
    comparisons.sort(key=lambda item: hash_share(item[0]))
    chosen = comparisons[: settings.subset_size]
    return [_with_id(row, name) for name, row in chosen]


def _with_id(row: Comparison, name: str) -> Comparison:
    prompt = Prompt(name, row.prompt.text, row.prompt.references, {}, row.prompt.messages)
    return Comparison(prompt, row.answers, row.pairs, row.margins)


def part_of(prompt: Prompt) -> str:
    """What a prompt is used for: train, dev or test."""
    requests = [text for role, text in prompt.messages if role == USER]
    beginning = requests[0] if requests else prompt.text
    share = hash_share(" ".join(beginning.split()))
    return next(part for part, limit in PARTS.items() if share <= limit)


def without_further_turns(rows: Sequence[Comparison]) -> list[Comparison]:
    """The rows whose answers are a single turn. Prints how many others there are.

    In a few rows of HH-RLHF the two dialogs part before their last turn, so that an answer contains
    the turns that followed it.
    """
    kept = []
    for row in rows:
        if not any(TURN.search(answer.text) for answer in row.answers):
            kept.append(row)
    print(f"further turns in an answer: {len(rows) - len(kept):,} of {len(rows):,} rows removed")
    return kept


def preferred(row: Comparison) -> str:
    """The answer that wins the most pairs."""
    wins = Counter(better for better, _ in row.pairs)
    return row.answers[wins.most_common(1)[0][0]].text


def prompts_of(rows: Sequence[Comparison]) -> list[Prompt]:
    """The different prompts, with their preferred answers as references."""
    references: dict[str, list[str]] = {}
    first: dict[str, Prompt] = {}
    for row in rows:
        first.setdefault(row.prompt.text, row.prompt)
        references.setdefault(row.prompt.text, []).append(preferred(row))
    prompts = []
    for text, prompt in first.items():
        prompts.append(Prompt(prompt.id, text, tuple(references[text]), messages=prompt.messages))
    return prompts


def prepare(settings: PrepareSettings) -> None:
    """Read the source and write all files.

    Raises:
      UserError: a file is malformed or would be replaced, or a part has no decided pair.
    """
    comparisons = [row for row in read_comparisons(settings) if row.pairs]
    print(f"{settings.source}: {len(comparisons):,} rows with a decided pair")
    comparisons = drop_pairs(without_further_turns(comparisons), FILTERS)
    parts: dict[str, list[Comparison]] = {part: [] for part in PARTS}
    for row in comparisons:
        parts[part_of(row.prompt)].append(row)
    files: dict[str, list[dict[str, Any]]] = {}
    for part, rows in parts.items():
        if not rows:
            raise UserError(
                f"{settings.source} has too few dialogs: none of its {len(comparisons)} rows falls"
                f" into {part}"
            )
        files[f"{part}.json"] = [PROMPTS.to_row(prompt) for prompt in prompts_of(rows)]
        files[f"{part}_pairs.json"] = [COMPARISONS.to_row(row) for row in rows]
    files["sft.json"] = [
        DEMONSTRATIONS.to_row(Demonstration(row.prompt, preferred(row))) for row in parts["train"]
    ]
    for path in source_files(Path(settings.source)):
        if path.name in files:
            check_not_input(str(path), str(Path(settings.data_dir) / path.name))
    for name, rows in files.items():
        write_json(Path(settings.data_dir) / name, rows)
        print(f"{Path(settings.data_dir) / name}: {len(rows):,} rows")


if __name__ == "__main__":
    run_program(prepare, PrepareSettings)
