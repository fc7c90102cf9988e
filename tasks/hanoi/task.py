"""Tower of Hanoi with three discs: from any position to any other."""

import random
from itertools import permutations

from fgrlhf.report.display import Display
from fgrlhf.task import Task
from fgrlhf.text_types import Prompt
from tasks.hanoi.puzzle import POSITIONS, read_moves, solve
from tasks.hanoi.reward import Moves, Solved, is_solved

SPLITS = {"dev": slice(0, 50), "test": slice(50, 150), "train": slice(150, None)}


def puzzles(split: str, seed: int) -> list[Prompt]:
    """All 702 pairs of different positions, 50 of them for dev, 100 for test.

    The splits are the same for every seed, which orders the pairs and chooses the solutions.
    """
    rng = random.Random(f"hanoi {seed}")
    of_split = set(_shuffled_pairs(random.Random("hanoi 0"))[SPLITS[split]])
    prompts = []
    for position, goal in _shuffled_pairs(rng):
        if (position, goal) not in of_split:
            continue
        text = f"goal {goal} start {position}:"
        shortest = solve(position, goal, 0.0, rng)
        meta = {"position": position, "goal": goal}
        prompts.append(Prompt(f"{position} to {goal}", text, (shortest,), meta=meta))
    return prompts


def _shuffled_pairs(rng: random.Random) -> list[tuple[str, str]]:
    """All pairs of a position and another one as the goal, in random order."""
    pairs = list(permutations(POSITIONS, 2))
    rng.shuffle(pairs)
    return pairs


def verified(prompt: Prompt, text: str) -> dict[str, float]:
    """Whether the puzzle is solved, and whether all moves are legal."""
    moves = list(read_moves(prompt.meta["position"], text))
    legal = all(move.after is not None for move in moves)
    return {"solved": float(is_solved(prompt, text)), "legal": float(legal)}


TASK = Task(
    name="hanoi",
    generate=puzzles,
    rewards={"moves": Moves, "solved": Solved},
    metrics=lambda prompts: (verified,),
    display=Display(headline=("solved", "reward"), order=("sft", "scalar", "dense")),
)
