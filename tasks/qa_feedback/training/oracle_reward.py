"""The true gold score of the mini world as a reward: an upper bound for reward models.

The pipeline never uses it. Its reward models are trained on the feedback file alone.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from fgrlhf.rewards.kind import RewardKind, Value
from fgrlhf.scorers.context import RewardContext
from fgrlhf.text_types import Prompt, SegmentScore
from tasks.qa_feedback.data.oracle import Judgement, judge


def gold_by_segment(truth: Judgement, scale: float = 1.0) -> list[SegmentScore]:
    """The increase of the gold score with each sub-sentence, times `scale`.

    With c right sub-sentences among n, and N needed facts, precision is c / n, recall is c / N,
    and gold = 2 c / (n + N). The sum of all values is scale * gold of the whole answer.
    """
    scores = []
    needed = len(truth.needed)
    right = 0
    gold_before = 0.0
    for n, segment in enumerate(truth.subsentences, start=1):
        right += segment.right
        gold = 2 * right / (n + needed)
        value = scale * (gold - gold_before)
        scores.append(SegmentScore(segment.start, segment.end, value, segment.label))
        gold_before = gold
    return scores


class OracleGoldReward:
    """The gold score times `scale`, segment by segment."""

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
    scale: Value = Field(default=1.0, description="factor of the score")

    def build(self, context: RewardContext) -> OracleGoldReward:
        return OracleGoldReward(self.scale)
