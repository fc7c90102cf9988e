"""The rewards of long-form QA under the paper's names, and the kinds that the names imply.

    relevance_model      R1, per sub-sentence   SubSentenceVerbosityReward
    factuality_model     R2, per sentence       FactualityReward
    completeness_model   R3, whole answer       PreferenceReward
    baseline_model       holistic preference    PreferenceReward

The published YAML files have no `kind`; `REWARD_KINDS` gives the kind of a reward's name.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import Amount, refuse
from fgrlhf.reward import CombinedReward, SegmentClassifierReward, SequenceScorerReward
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.rewards.kinds import SegmentModel, SequenceModel
from fgrlhf.scorers.base import RewardContext
from fgrlhf.text_types import SegmentValue


class _OneLevelReward(SegmentClassifierReward):
    """A segment classifier that must judge segments of one level.

    `published` has the facts of its reward model that the published checkpoints do not store.
    """

    published: ClassVar[dict[str, Any]]

    def __init__(
        self,
        scorer,
        positive_reward: float,
        negative_reward: float,
        value: SegmentValue = "hard",
    ):
        level = self.published["level"]
        if scorer.spec.level != level:
            raise UserError(
                f"{type(self).__name__} judges each {level}, but its reward model was trained"
                f" on the level `{scorer.spec.level}`: check `ckpt`"
            )
        super().__init__(scorer, {"ok": positive_reward, "error": negative_reward}, value)


class SubSentenceVerbosityReward(_OneLevelReward):
    """R1: is each sub-sentence relevant, not repeated, coherent?"""

    published = {"level": "subsentence", "error_label": "NF-ERR", "with_context": False}


class FactualityReward(_OneLevelReward):
    """R2: is each sentence supported by the passages?"""

    published = {"level": "sentence", "error_label": "F-ERR", "with_context": True}


class PreferenceReward(SequenceScorerReward):
    """A score of the whole answer: R3 (information completeness) or the holistic preference."""


# The paper's names for the two combinations: several rewards, each on its own segments, and one
# holistic score at the end of the answer. Only their YAML differs.
FineGrainedReward = CombinedReward
BaselineReward = CombinedReward


class OneErrorModel(SegmentModel):
    """R1 and R2: a value for segments with the one error, and one for those without."""

    kind: Literal["relevance", "factuality"]
    positive_reward: Amount = Field(description="of a segment without the error")
    negative_reward: Amount = Field(description="of a segment with the error")

    @property
    def reward(self) -> type[_OneLevelReward]:
        """The reward that it builds."""
        return SubSentenceVerbosityReward if self.kind == "relevance" else FactualityReward

    @property
    def published(self) -> dict[str, Any]:
        return self.reward.published

    @model_validator(mode="after")
    def _some_value(self):
        if self.positive_reward == self.negative_reward == 0 and self.weight:
            text = (
                "it and negative_reward are 0, so the reward is always 0: set one of them, or set"
                " weight=0 to leave the reward out"
            )
            refuse([("positive_reward", text)])
        return self

    def build_member(self, ckpt: str, context: RewardContext) -> _OneLevelReward:
        return self.reward(
            self.scorer(ckpt, context), self.positive_reward, self.negative_reward, self.value
        )


class Preference(SequenceModel):
    """R3, or the holistic preference."""

    kind: Literal["preference"] = "preference"
    reward = PreferenceReward

    @property
    def published(self) -> dict[str, Any]:
        return {"with_context": True}


KINDS: dict[str, type[RewardKind]] = {
    "relevance": OneErrorModel,
    "factuality": OneErrorModel,
    "preference": Preference,
}

REWARD_KINDS = {
    "relevance_model": "relevance",
    "factuality_model": "factuality",
    "completeness_model": "preference",
    "baseline_model": "preference",
}
