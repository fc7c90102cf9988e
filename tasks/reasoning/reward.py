"""The outcome reward: the answer of a solution is right or wrong."""

from typing import Literal

from pydantic import Field

from fgrlhf.configs.strict import Amount
from fgrlhf.rewards.kind import RuleReward
from fgrlhf.text_types import Prompt, SegmentScore
from tasks.reasoning.answers import is_right


class AnswerReward(RuleReward):
    """A value at the end of the response, by whether its answer equals that of the reference."""

    kind: Literal["answer"] = "answer"
    right: Amount = Field(default=1.0, description="value of a right answer")
    wrong: Amount = Field(default=0.0, description="value of a wrong or missing answer")

    def score(self, prompt: Prompt, text: str) -> list[SegmentScore] | None:
        if not prompt.references:
            return None
        right = any(is_right(text, reference) for reference in prompt.references)
        value, label = (self.right, "right answer") if right else (self.wrong, "wrong answer")
        return [SegmentScore(0, None, value, label)]
