"""Puzzles for training and evaluation, and imperfect solutions for supervised fine-tuning.

    python -m tasks.connections.data.make_puzzles data_dir=outputs/connections/mini/data groups=3

Writes to data_dir

    train.json, dev.json, test.json    puzzles: {prompt, references, words, groups, categories}
    demonstrations.json                a response to each training puzzle: {prompt, response}

A demonstration is the solution, or with the probability `error_rate` the solution with two words in
each other's groups.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from fgrlhf.base.files import write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import Count, FilePath, Seed
from fgrlhf.data.formats import DEMONSTRATIONS, PROMPTS, Demonstration
from fgrlhf.text_types import Prompt
from tasks.connections.puzzle import Design, make_puzzles, with_a_mistake, written


class PuzzleSettings(Design):
    """Which puzzles to write, and how many."""

    data_dir: FilePath = Field(description="folder of the results")
    train: Count = Field(default=2000, description="training puzzles")
    dev: Count = Field(default=100, description="puzzles of the dev split")
    test: Count = Field(default=200, description="puzzles of the test split")
    error_rate: float = Field(
        default=0.5, ge=0, le=1, description="share of demonstrations with two wrong groups"
    )
    seed: Seed = Field(default=0, description="of everything random, except the splits' words")


def demonstrate(prompt: Prompt, error_rate: float, rng: random.Random) -> Demonstration:
    """The solution of a puzzle, perhaps with two words in each other's groups."""
    groups = prompt.meta["groups"]
    if rng.random() < error_rate:
        groups = with_a_mistake(groups, rng)
    return Demonstration(Prompt(prompt.id, prompt.text), written(groups, prompt.meta["words"]))


def main(argv: Sequence[str] | None = None) -> None:
    settings = settings_from(PuzzleSettings, argv)
    folder = Path(settings.data_dir)
    counts = {"train": settings.train, "dev": settings.dev, "test": settings.test}
    prompts = {
        split: make_puzzles(split, settings.seed, count, settings)
        for split, count in counts.items()
    }
    rng = random.Random(f"connections demonstrations {settings.seed}")
    demonstrations = [demonstrate(prompt, settings.error_rate, rng) for prompt in prompts["train"]]
    for split, rows in prompts.items():
        write_json(folder / f"{split}.json", [PROMPTS.to_row(prompt) for prompt in rows])
    rows = [DEMONSTRATIONS.to_row(demonstration) for demonstration in demonstrations]
    write_json(folder / "demonstrations.json", rows)
    sizes = ", ".join(f"{count} {split}" for split, count in counts.items())
    print(f"{folder}: {sizes} puzzles and {len(rows)} demonstrations", flush=True)


if __name__ == "__main__":
    run_main(main)
