"""Tower of Hanoi with three discs: from any position to any other."""

import random
from collections.abc import Sequence
from itertools import permutations

from fgrlhf.evaluation import Metric
from fgrlhf.task import Task
from fgrlhf.types import Prompt
from tasks.hanoi.puzzle import POSITIONS, read_moves, solve
from tasks.hanoi.reward import Moves, Solved, is_solved

SPLITS = {"dev": slice(0, 50), "test": slice(50, 150), "train": slice(150, None)}


def puzzles(split: str, seed: int) -> list[Prompt]:
    """Of all 702 pairs of different positions 50 are for dev, 100 for test, the rest for
    training.
    """
    pairs = list(permutations(POSITIONS, 2))
    random.Random(f"hanoi {seed}").shuffle(pairs)
    return [_prompt(position, goal) for position, goal in pairs[SPLITS[split]]]


def _prompt(position: str, goal: str) -> Prompt:
    return Prompt(
        id=f"{position} to {goal}",
        text=f"goal {goal} start {position}:",
        references=(solve(position, goal),),
        meta={"position": position, "goal": goal},
    )


def verified(prompt: Prompt, text: str) -> dict[str, float]:
    """Whether the puzzle is solved, and whether all moves are legal."""
    moves = list(read_moves(prompt.meta["position"], text))
    legal = all(move.after is not None for move in moves)
    return {"solved": float(is_solved(prompt, text)), "legal": float(legal)}


def metrics(prompts: Sequence[Prompt]) -> tuple[Metric, ...]:
    return (verified,)


TASK = Task(
    name="hanoi",
    generate=puzzles,
    rewards={"moves": Moves, "solved": Solved},
    metrics=metrics,
)
