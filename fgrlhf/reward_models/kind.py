"""The base class of reward kinds, without anything heavy to import."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fgrlhf.config import Amount, StrictModel

if TYPE_CHECKING:
    from fgrlhf.reward import AspectReward, PrefixFn


@dataclass(frozen=True)
class RewardContext:
    """What a kind may need to build its reward.

    Args:
      prefix: the words that a reward model reads before a response.
      device: of reward models, such as "cpu" or "cuda:0".
      dtype: of their forward passes, "fp32" or "bf16".
    """

    prefix: "PrefixFn"
    device: str = "cpu"
    dtype: str = "fp32"


class RewardKind(StrictModel):
    """Base class of all kinds. A subclass declares `kind: Literal[...]` and its own keys."""

    kind: str
    weight: Amount = Field(
        1.0,
        description="multiplies the reward; below 0 it becomes a penalty; 0 leaves the reward out",
    )
    place: Literal["segment", "end"] = Field(
        "segment", description="end: the same values as one scalar on the last token"
    )

    def build(self, context: RewardContext) -> "AspectReward":
        """The reward, its models loaded."""
        raise NotImplementedError

    def model_folders(self) -> tuple[str, ...]:
        """Folders and hub names whose contents decide the reward; a stage notes their checksums."""
        return ()
