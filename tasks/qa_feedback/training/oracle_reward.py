"""The true gold score of the mini world as a reward: an upper bound for reward models.

The pipeline never uses it. Its reward models are trained on the feedback file alone.
"""

from typing import Literal

from pydantic import Field

from fgrlhf.rewards.kind import RuleReward, Value
from fgrlhf.text_types import Prompt, SegmentScore
from tasks.qa_feedback.data.oracle import Truth, judge


def gold_by_segment(truth: Truth, scale: float = 1.0) -> list[SegmentScore]:
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


class OracleGold(RuleReward):
    """The gold score of the mini world; `place: end` gives the same sum as one scalar."""

    kind: Literal["oracle_gold"] = "oracle_gold"
    scale: Value = Field(default=1.0, description="factor of the score")

    def score(self, prompt: Prompt, text: str) -> list[SegmentScore]:
        truth = judge(prompt.meta["question"], prompt.meta["passages"], text)
        return gold_by_segment(truth, self.scale)
