"""Rewards of the Tower of Hanoi: every move verified, or the solution as a whole."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fgrlhf.config import Amount
from fgrlhf.reward_models.kind import RewardContext, RewardKind
from fgrlhf.types import Prompt, SegmentScore
from tasks.hanoi.puzzle import moves_to, read_moves


class MovesReward:
    """(d(before) - d(after)) / d(start) on each legal move, where d counts the moves to the goal.

    A solution's values add up to 1, whatever its length, since they are differences of a potential
    (Ng, Harada & Russell 1999). The first line that is no legal move ends the solution and gets
    `illegal`.
    """

    def __init__(self, illegal: float):
        self.illegal = illegal

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        return [self._scores(prompt, text) for prompt, text in zip(prompts, texts)]

    def _scores(self, prompt: Prompt, text: str) -> list[SegmentScore]:
        start = prompt.meta["position"]
        distance = moves_to(prompt.meta["goal"])
        scores = []
        for move in read_moves(start, text):
            if move.after is None:
                scores.append(SegmentScore(move.start, move.end, self.illegal, "illegal"))
                continue
            gained = distance[move.before] - distance[move.after]
            label = {1: "closer", 0: "detour", -1: "further"}[gained]
            value = gained / distance[start]
            scores.append(SegmentScore(move.start, move.end, value, label))
        return scores


class Moves(RewardKind):
    """A value for each move: its share of the way to the goal."""

    kind: Literal["moves"] = "moves"
    illegal: Amount = Field(description="value of the first line that is no legal move, below 0")

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
