"""Imperfect solutions for supervised fine-tuning: detours, and solutions that end too early.

python -m tasks.hanoi.data.demonstrations file=outputs/hanoi/mini/demonstrations.json
"""

import random
from collections.abc import Sequence

from pydantic import Field

from fgrlhf.base.files import write_json
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import Count, FilePath, StrictModel
from fgrlhf.runs.runlog import is_main_rank
from tasks.hanoi.puzzle import solve
from tasks.hanoi.task import puzzles


class DemonstrationSettings(StrictModel):
    file: FilePath = Field(description="output file, rows {text, answer}")
    count: Count = Field(default=2000, description="number of demonstrations")
    error_rate: float = Field(default=0.4, ge=0, lt=1, description="share of random moves")
    max_moves: Count = Field(default=10, description="a longer solution is cut")
    seed: int = Field(default=0, description="of everything random")


def main(argv: Sequence[str] | None = None) -> None:
    settings = settings_from(DemonstrationSettings, argv)
    if not is_main_rank():  # several processes would write the same file
        return
    rng = random.Random(f"demonstrations {settings.seed}")
    prompts = puzzles("train", settings.seed)
    rows = []
    for _ in range(settings.count):
        prompt = rng.choice(prompts)
        solution = solve(prompt.meta["position"], prompt.meta["goal"], settings.error_rate, rng)
        moves = solution.split()[: settings.max_moves]
        rows.append({"text": prompt.text, "answer": [" ".join(moves)]})
    write_json(settings.file, rows)
    print(f"{settings.count} demonstrations: {settings.file}", flush=True)


if __name__ == "__main__":
    run_main(main)
