"""The base class of reward kinds, without heavy imports."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from fgrlhf.base.errors import shorten
from fgrlhf.configs.strict import Amount, StrictModel
from fgrlhf.scorers.base import RewardContext

if TYPE_CHECKING:
    from fgrlhf.reward import AspectReward
    from fgrlhf.text_types import Prompt, SegmentScore


def _not_zero(value: float) -> float:
    if value == 0:
        raise ValueError("0 makes the reward 0 for every response; set weight=0 to disable it")
    return value


Value = Annotated[Amount, AfterValidator(_not_zero)]


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(
            "it must be the 64 hexadecimal digits that `fgrlhf reward-serve` prints as"
            f" model_sha256, not {shorten(value, 80)}"
        )
    return value


Sha256 = Annotated[str, AfterValidator(_sha256)]
Reads = Literal["segment", "prefix", "increment"]  # of a response: READS_HELP in kinds.py


class RewardKind(StrictModel):
    """Base class of all kinds. A subclass declares `kind: Literal[...]` and its own keys."""

    kind: str
    weight: Amount = Field(
        default=1.0,
        description="factor of the reward; below 0: a penalty; 0 disables the reward",
    )

    @property
    def at_end(self) -> bool:
        """Whether the sum of all values goes to the last token, wherever their segments are."""
        return False

    def build(self, context: RewardContext) -> "AspectReward":
        """Build the reward and load its models."""
        raise NotImplementedError(f"the reward kind {type(self).__name__} needs a method `build`")

    def model_folders(self) -> tuple[str, ...]:
        """Folders and hub names of models that the reward uses, and its segmenters.

        Stages and checkpoints record their digests.
        """
        return ()


class SegmentKind(RewardKind):
    """Base class of kinds that give values to segments of a response."""

    place: Literal["segment", "end"] = Field(
        default="segment", description="end: the sum of all values on the last token"
    )

    @property
    def at_end(self) -> bool:
        return self.place == "end"


class RuleReward(SegmentKind):
    """Base class of kinds that need no model: a rule scores each response by itself.

    A subclass declares its keys and writes `score`; the config is the reward.
    """

    def score(self, prompt: "Prompt", text: str) -> "list[SegmentScore] | None":
        """The values of a response's segments, or None where the reward does not apply."""
        raise NotImplementedError(f"the reward kind {type(self).__name__} needs a method `score`")

    def segment_scores(
        self, prompts: "Sequence[Prompt]", texts: Sequence[str]
    ) -> "list[list[SegmentScore] | None]":
        return [self.score(prompt, text) for prompt, text in zip(prompts, texts)]

    def build(self, context: RewardContext) -> "AspectReward":
        return self
