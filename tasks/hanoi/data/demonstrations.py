"""Imperfect solutions for supervised fine-tuning: detours, and solutions that end too early.

python -m tasks.hanoi.data.demonstrations file=outputs/mini/hanoi/demonstrations.json
"""

import random
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.config import Count, FilePath, StrictModel
from fgrlhf.errors import run_main
from fgrlhf.files import write_json
from tasks.hanoi.puzzle import solve
from tasks.hanoi.task import puzzles

Rate = Annotated[float, Field(ge=0, lt=1)]


class Settings(StrictModel):
    file: FilePath = Field(description="where the rows {text, answer} go")
    count: Count = 2000
    error_rate: Rate = Field(0.4, description="moves that are drawn from all legal ones")
    most_moves: Count = Field(10, description="a longer solution is cut")
    seed: int = 0


def demonstrations(settings: Settings) -> list[dict]:
    """Rows {text, answer}: puzzles of the split `train`, each solved with detours."""
    rng = random.Random(f"demonstrations {settings.seed}")
    prompts = puzzles("train", settings.seed)
    rows = []
    for _ in range(settings.count):
        prompt = rng.choice(prompts)
        position, goal = prompt.meta["position"], prompt.meta["goal"]
        moves = solve(position, goal, settings.error_rate, rng).split(", ")
        rows.append({"text": prompt.text, "answer": [", ".join(moves[: settings.most_moves])]})
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    settings = settings_from(Settings, argv)
    write_json(settings.file, demonstrations(settings))
    print(f"{settings.count} demonstrations: {settings.file}", flush=True)


if __name__ == "__main__":
    run_main(main)
