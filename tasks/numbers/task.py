"""Two games for a random tiny model: count upwards, and write a date."""

import random

from fgrlhf.task import Task
from fgrlhf.text_types import Prompt
from tasks.numbers.reward import Date, Increasing

LARGEST_START = 9
SIZES = {"train": 200, "dev": 40, "test": 100}


def prompts(split: str, seed: int) -> list[Prompt]:
    """Half of the prompts ask for increasing numbers above a given one, half for a date.

    There are only eleven different texts, so all splits have the same ones.
    """
    rng = random.Random(f"numbers {split} {seed}")
    result = []
    for i in range(SIZES[split] // 2):
        above = rng.randint(0, LARGEST_START)
        numbers = {"game": "increasing", "above": above}
        result.append(Prompt(f"increasing-{i}", f"numbers above {above}:", meta=numbers))
        result.append(Prompt(f"date-{i}", "a date:", meta={"game": "date"}))
    return result


TASK = Task(
    name="numbers",
    generate=prompts,
    rewards={"increasing": Increasing, "date": Date},
)
