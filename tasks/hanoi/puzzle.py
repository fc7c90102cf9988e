"""Tower of Hanoi: positions, legal moves, distances, and reading a solution move by move.

A position names the peg of each disc, the smallest disc first: "A A C" has discs 1 and 2 on peg A
and disc 3 on peg C. A solution lists the position after each move: "B A C, B B C, A B C".
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
POSITIONS = tuple(" ".join(pegs) for pegs in product(PEGS, repeat=DISCS))
_PART = re.compile(r"[^\s,](?:[^,]*[^\s,])?")


@dataclass(frozen=True)
class Move:
    """A part of a solution between commas.

    Attributes:
      start, end: its characters.
      before: the position it starts from.
      after: the position it leads to; None where that is no legal move.
    """

    start: int
    end: int
    before: str
    after: str | None


@cache
def legal_moves(position: str) -> tuple[str, ...]:
    """The positions one move away.

    A disc may move if no smaller disc lies on the peg it leaves or on the peg it goes to.
    """
    pegs = position.split()
    positions = []
    for disc, old_peg in enumerate(pegs):
        smaller = pegs[:disc]
        for peg in PEGS:
            if peg != old_peg and old_peg not in smaller and peg not in smaller:
                positions.append(" ".join([*smaller, peg, *pegs[disc + 1 :]]))
    return tuple(positions)


@cache
def moves_to(goal: str) -> Mapping[str, int]:
    """The least number of moves from every position to the position `goal`.

    Moves can be taken back, so a breadth-first search from the goal finds them all.
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
    """The moves of a solution that starts at `position`, up to and including the first illegal
    one.
    """
    for part in _PART.finditer(solution):
        after = part[0] if part[0] in legal_moves(position) else None
        yield Move(part.start(), part.end(), position, after)
        if after is None:
            return
        position = after


def solve(
    position: str, goal: str, error_rate: float = 0.0, rng: random.Random | None = None
) -> str:
    """A solution with as few moves as possible, or one with detours.

    Args:
      error_rate: the probability that a move is any legal one, drawn from `rng`.
    """
    distance = moves_to(goal)
    solution = []
    while distance[position]:
        if rng is not None and rng.random() < error_rate:
            position = rng.choice(legal_moves(position))
        else:
            position = min(legal_moves(position), key=lambda after: distance[after])
        solution.append(position)
    return ", ".join(solution)
