"""Rewards of the Tower of Hanoi: every move verified, or the solution as a whole."""

from typing import Literal

from pydantic import Field

from fgrlhf.configs.strict import Amount
from fgrlhf.rewards.kind import RuleReward
from fgrlhf.text_types import Prompt, SegmentScore
from tasks.hanoi.puzzle import moves_to, read_moves

LABELS = {1: "closer", 0: "detour", -1: "further"}


class Moves(RuleReward):
    """+1, 0 or -1 for each legal move: by how many moves it brings the goal closer.

    The first illegal move gets `illegal` and ends the solution. The values of a solution add up to
    the least number of moves that the puzzle takes, whatever the detours: they are differences of
    a potential (Ng, Harada & Russell 1999).
    """

    kind: Literal["moves"] = "moves"
    illegal: Amount = Field(description="value of the first illegal move")

    def score(self, prompt: Prompt, text: str) -> list[SegmentScore]:
        distance = moves_to(prompt.meta["goal"])
        scores = []
        for move in read_moves(prompt.meta["position"], text):
            if move.after is None:
                value, label = self.illegal, "illegal"
            else:
                value = distance[move.before] - distance[move.after]
                label = LABELS[value]
            scores.append(SegmentScore(move.start, move.end, value, label))
        return scores


class Solved(RuleReward):
    """The scalar reward: 1 at the end of a solution, 0 for any other response."""

    kind: Literal["solved"] = "solved"

    def score(self, prompt: Prompt, text: str) -> list[SegmentScore]:
        solved = is_solved(prompt, text)
        return [SegmentScore(0, None, float(solved), "solved" if solved else "unsolved")]


def is_solved(prompt: Prompt, text: str) -> bool:
    """Whether all moves are legal and the last one reaches the goal."""
    position = prompt.meta["position"]
    for move in read_moves(position, text):
        if move.after is None:
            return False
        position = move.after
    return position == prompt.meta["goal"]
