"""Tower of Hanoi: positions, legal moves, distances, and reading a solution move by move.

A position names the peg of each disc, the smallest disc first: "AAC" has discs 1 and 2 on peg A
and disc 3 on peg C. A solution lists the position after each move: "BAC BBC ABC".
"""

import random
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

PEGS = "ABC"
DISCS = 3
POSITIONS = tuple("".join(pegs) for pegs in product(PEGS, repeat=DISCS))


@dataclass(frozen=True)
class Move:
    """The characters of a move and the positions around it; `after` is None if it is illegal."""

    start: int
    end: int
    before: str
    after: str | None


@cache
def legal_moves(position: str) -> tuple[str, ...]:
    """The positions one move away.

    A disc may move if no smaller disc lies on the peg it leaves or on the peg it goes to.
    """
    positions = []
    for disc, old_peg in enumerate(position):
        smaller = position[:disc]
        for peg in PEGS:
            if peg != old_peg and old_peg not in smaller and peg not in smaller:
                positions.append(smaller + peg + position[disc + 1 :])
    return tuple(positions)


@cache
def moves_to(goal: str) -> Mapping[str, int]:
    """The least number of moves from every position to `goal`.

    Every move can be undone, so a breadth-first search from the goal finds these numbers.
    """
    distance = {goal: 0}
    queue = deque([goal])
    while queue:
        position = queue.popleft()
        for neighbour in legal_moves(position):
            if neighbour not in distance:
                distance[neighbour] = distance[position] + 1
                queue.append(neighbour)
    return distance


def read_moves(position: str, solution: str) -> Iterator[Move]:
    """The moves of a solution from `position`, up to and including the first illegal one."""
    for match in re.finditer(r"\S+", solution):
        after = match[0] if match[0] in legal_moves(position) else None
        yield Move(match.start(), match.end(), position, after)
        if after is None:
            return
        position = after


def solve(position: str, goal: str, error_rate: float, rng: random.Random) -> str:
    """A solution in which a share `error_rate` of the moves are random legal ones."""
    distance = moves_to(goal)
    solution = []
    while distance[position]:
        if rng.random() < error_rate:
            position = rng.choice(legal_moves(position))
        else:
            position = min(legal_moves(position), key=lambda after: distance[after])
        solution.append(position)
    return " ".join(solution)
