"""Draw random questions for two rounds of feedback.

    python -m tasks.experiments.draw_questions data_dir=... output_dir=... n=150 seed=0

Writes <output_dir>/{first,second}/train.json, each with `n` rows of <data_dir>/train.json. No
question is in both.
"""

import random
from pathlib import Path

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.seeds import derive_seed
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel

ROUNDS = ("first", "second")


class DrawQuestionsSettings(StrictModel):
    data_dir: FilePath = Field(description="folder with train.json")
    output_dir: FilePath = Field(description="folder in which the two rounds' folders are written")
    n: PositiveInt = Field(description="questions in each round")
    seed: int = Field(default=0, description="of the choice")


def draw(settings: DrawQuestionsSettings) -> None:
    """Write the questions of both rounds.

    Raises:
      UserError: the file is missing or has too few rows.
    """
    path = Path(settings.data_dir) / "train.json"
    rows = read_json(path)
    wanted = settings.n * len(ROUNDS)
    if len(rows) < wanted:
        raise UserError(
            f"{path} has {len(rows)} questions, fewer than the {wanted} of both rounds: set a"
            " lower n=..."
        )
    rng = random.Random(derive_seed(settings.seed, "questions"))
    chosen = rng.sample(rows, wanted)
    for number, name in enumerate(ROUNDS):
        first = number * settings.n
        write_json(
            Path(settings.output_dir) / name / "train.json", chosen[first : first + settings.n]
        )
    print(f"{settings.output_dir}: {settings.n} questions in each of {len(ROUNDS)} rounds")


if __name__ == "__main__":
    run_program(draw, DrawQuestionsSettings)
