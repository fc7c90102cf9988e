"""Rewards of the Tower of Hanoi: every move verified, or the solution as a whole."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fgrlhf.config import Amount
from fgrlhf.reward_models.kind import RewardContext, RewardKind
from fgrlhf.types import Prompt, SegmentScore
from tasks.hanoi.puzzle import moves_to, read_moves

LABELS = {1: "closer", 0: "detour", -1: "further"}


class MovesReward:
    """+1, 0 or -1 for each legal move: how much closer it brings the goal, in moves.

    The first part that is no legal move gets `illegal` and ends the solution. The values of a
    solution add up to the least number of moves that the puzzle takes, whatever the detours: they
    are differences of a potential (Ng, Harada & Russell 1999).
    """

    def __init__(self, illegal: float):
        self.illegal = illegal

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        return [self._scores(prompt, text) for prompt, text in zip(prompts, texts)]

    def _scores(self, prompt: Prompt, text: str) -> list[SegmentScore]:
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


class Moves(RewardKind):
    """A value for each move: whether it brings the goal closer."""

    kind: Literal["moves"] = "moves"
    illegal: Amount = Field(description="value of the first part that is no legal move")

    def build(self, context: RewardContext) -> MovesReward:
        return MovesReward(self.illegal)


def is_solved(prompt: Prompt, text: str) -> bool:
    """Whether all lines are legal moves and the last one leads to the goal."""
    position = prompt.meta["position"]
    for move in read_moves(position, text):
        if move.after is None:
            return False
        position = move.after
    return position == prompt.meta["goal"]


class SolvedReward:
    """1 at the end of a solution, 0 for any other response."""

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        results = []
        for prompt, text in zip(prompts, texts):
            solved = is_solved(prompt, text)
            results.append(
                [SegmentScore(0, None, float(solved), "solved" if solved else "unsolved")]
            )
        return results


class Solved(RewardKind):
    """The scalar reward: 1 for a solution, 0 for anything else."""

    kind: Literal["solved"] = "solved"

    def build(self, context: RewardContext) -> SolvedReward:
        return SolvedReward()
