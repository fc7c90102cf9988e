"""The mini world's truth as a reward: the upper bound of what a reward model can give.

The pipeline itself never uses it: its reward models see the feedback file alone.
"""

from collections.abc import Sequence
from typing import Literal

from fgrlhf.reward_models.kind import RewardContext, RewardKind
from fgrlhf.reward_models.kinds import Value
from fgrlhf.types import Prompt, SegmentScore
from tasks.qa_feedback.data.oracle import Judgement, judge


def gold_by_segment(truth: Judgement, scale: float = 1.0) -> list[SegmentScore]:
    """What each sub-sentence adds to the gold score of the answer so far; the sum is scale * gold
    of the whole.

    With c right ones among n sub-sentences and N needed facts, precision is c / n, recall c / N,
    and gold = 2 c / (n + N).
    """
    scores, right, needed, before = [], 0, len(truth.needed), 0.0
    for n, segment in enumerate(truth.subsentences, start=1):
        right += segment.right
        now = 2 * right / (n + needed)
        scores.append(
            SegmentScore(segment.start, segment.end, scale * (now - before), segment.label)
        )
        before = now
    return scores


class OracleGoldReward:
    """scale * gold score, segment by segment."""

    def __init__(self, scale: float):
        self.scale = scale

    def segment_scores(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[list[SegmentScore]]:
        results = []
        for prompt, text in zip(prompts, texts):
            truth = judge(prompt.meta["question"], prompt.meta["passages"], text)
            results.append(gold_by_segment(truth, self.scale))
        return results


class OracleGold(RewardKind):
    """The gold score of the mini world; `place: end` gives the same sum as one scalar."""

    kind: Literal["oracle_gold"] = "oracle_gold"
    scale: Value = 1.0

    def build(self, context: RewardContext) -> OracleGoldReward:
        return OracleGoldReward(self.scale)
