"""The base class of reward kinds, without heavy imports."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from fgrlhf.base.errors import shorten
from fgrlhf.configs.schema import NUMBER, SECTION
from fgrlhf.configs.strict import Amount, Count, Positive, StrictModel, refuse
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
# of a response: attribution.py, and READS_HELP in kinds.py
Reads = Literal["segment", "prefix", "increment", "without", "shapley"]


class WeightSchedule(StrictModel):
    """A weight that changes linearly for some steps, then stays."""

    model_config = ConfigDict(serialize_by_alias=True)

    start: Amount = Field(alias="from", description="weight of the first step")
    end: Amount = Field(alias="to", description="weight from step `steps` on")
    steps: Count = Field(description="rollout steps between the two")

    @model_validator(mode="after")
    def _some_weight(self):
        if self.start == self.end:
            refuse([("to", "it is equal to from: write the weight as a number")])
        return self

    def at(self, step: int) -> float:
        """From + (to - from) min(step / steps, 1)."""
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


def _form_of_weight(value: Any) -> str:
    return SECTION if isinstance(value, dict | WeightSchedule) else NUMBER


# the tags keep pydantic from refusing a value once for every form
Weight = Annotated[
    Annotated[Amount, Tag(NUMBER)] | Annotated[WeightSchedule, Tag(SECTION)],
    Discriminator(_form_of_weight),
]


class Constraint(StrictModel):
    """A lower bound in place of a fixed weight.

    The reward's weight is the multiplier of the bound in a Lagrangian. It starts at `weight`, and
    after every step moves by dual ascent, with the batch's value of the metric:

        w <- max(0, w + lr (at_least - value))

    So it grows while the bound is broken, and falls to 0 while there is room.
    """

    metric: Literal["reward", "ratio"] = Field(
        default="reward",
        description=(
            "reward: the mean over responses, without the weight; ratio: the share of segments"
            " without an error"
        ),
    )
    at_least: Amount = Field(description="the bound of the mean over responses")
    lr: Positive = Field(default=0.1, description="step size of the weight")

    def followed(self, weight: float, value: float) -> float:
        """The weight after a batch with this value of the metric."""
        return max(0.0, weight + self.lr * (self.at_least - value))


class RewardKind(StrictModel):
    """Base class of all kinds. A subclass declares `kind: Literal[...]` and its own keys."""

    kind: str
    weight: Weight = Field(
        default=1.0,
        description=(
            "factor of the reward; below 0: a penalty; 0 disables the reward; {from, to, steps}: it"
            " changes during training"
        ),
    )
    constraint: Constraint | None = Field(
        default=None, description="adapt the weight so that the reward keeps a lower bound"
    )

    @model_validator(mode="after")
    def _weight_of_a_bound(self):
        is_number = isinstance(self.weight, float | int) and self.weight > 0
        if self.constraint is not None and not is_number:
            refuse([("constraint", "it adapts the weight: give weight a number above 0 to start")])
        return self

    @property
    def base_weight(self) -> float:
        """The weight of evaluations and logs.

        That at the end of a schedule, or, if it ends with 0, at its start.
        """
        if isinstance(self.weight, WeightSchedule):
            return self.weight.end or self.weight.start
        return self.weight

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
