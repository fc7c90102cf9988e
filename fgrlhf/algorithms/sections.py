"""The sections of `algorithm:` that several algorithms have: kl, gae, whiten, entropy, loss, ptx.

Each checks what its own keys say. Which algorithm reads them is in fgrlhf/algorithms/config.py.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from fgrlhf.configs.schema import LIST, NUMBER, SECTION
from fgrlhf.configs.sections import ReferenceConfig
from fgrlhf.configs.strict import (
    Coefficient,
    Count,
    FilePath,
    Positive,
    StrictModel,
    refuse,
    unread_keys,
)

Share = Annotated[float, Field(ge=0, le=1)]
NumberOrByName = Annotated[
    Annotated[Share, Tag(NUMBER)] | Annotated[dict[str, Share], Tag(SECTION)],
    Discriminator(lambda value: SECTION if isinstance(value, dict) else NUMBER),
]


class KLConfig(StrictModel):
    """The section `algorithm.kl`: the KL from the reference."""

    coef: Coefficient = Field(default=0.2, description="coefficient of the KL from the reference")
    part_of: Literal["reward", "loss"] | None = Field(
        default=None,
        description=(
            "reward: log-ratios; loss: k3; null: the loss of grpo, gpg, sdpo and distill, the"
            " reward of the others"
        ),
    )
    target: Positive | None = Field(
        default=None,
        description=(
            "KL per response in nats that coef adapts to (Ziegler et al.); null: coef is fixed"
        ),
    )
    horizon: Count = Field(default=10_000, description="episodes over which coef adapts")
    reference: ReferenceConfig = ReferenceConfig()

    @model_validator(mode="after")
    def _adapts_a_coefficient(self):
        if self.reference.sync_every is not None and self.coef == 0:
            reason = "is not read, since coef is 0: set coef above 0, or leave it out"
            refuse([("reference", reason)])
        if self.target is None:
            way_out = "since target is null and coef is fixed: set target, or leave it out"
            refuse(unread_keys(self, ["horizon"], way_out))
        elif self.coef == 0:
            reason = (
                "it is not read, since coef is 0 and the adapted values are multiples of it: set"
                " coef above 0, or leave it out"
            )
            refuse([("target", reason)])
        return self


class GAEConfig(StrictModel):
    """The section `algorithm.gae`: generalised advantage estimation."""

    lam: NumberOrByName = Field(
        default=0.95, description="lambda; with critic=per_aspect also {NAME: number}"
    )
    start: Literal["own_end", "longest"] = Field(
        default="own_end", description="longest: as published (D3)"
    )


class WhitenConfig(StrictModel):
    """The section `algorithm.whiten`: how rewards and advantages are scaled in a batch."""

    rewards: bool = Field(
        default=False,
        description=(
            "divide the token rewards of a batch by their standard deviation; true: as published"
        ),
    )
    divides_by: Literal["std", "sqrt_std"] = Field(
        default="std",
        description="of the rewards, and of the advantages; sqrt_std: as published (deviation D1)",
    )


class EntropyConfig(StrictModel):
    """The section `algorithm.entropy`: a bonus on the entropy of the next token, in the loss."""

    coef: Coefficient = Field(
        default=0.0,
        description="coefficient of the bonus; with a target, its change after each rollout step",
    )
    target: Positive | None = Field(
        default=None,
        description=(
            "nats per token: below it the coefficient, 0 at first, rises, above it falls and there"
            " is no bonus (Skywork-OR1); null: coef is fixed"
        ),
    )

    @model_validator(mode="after")
    def _adapts_a_coefficient(self):
        if self.target is not None and self.coef == 0:
            reason = (
                "it is not read, since coef is 0 and the coefficient would never change: set coef"
                " above 0, 0.005 as in the paper, or leave it out"
            )
            refuse([("target", reason)])
        return self


Cliprange = Annotated[
    Annotated[Positive, Tag(NUMBER)] | Annotated[list[Positive], Tag(LIST)],
    Discriminator(lambda value: LIST if isinstance(value, list | tuple) else NUMBER),
]


class LossConfig(StrictModel):
    """The section `algorithm.loss`: how the losses of tokens are computed and averaged."""

    cliprange: Cliprange = Field(
        default=0.2,
        description="clip the ratio to 1 - cliprange .. 1 + cliprange; [l, h]: to 1 - l .. 1 + h",
    )
    type: Literal["token", "response", "constant", "cispo"] = Field(
        default="token",
        description=(
            "token: the mean over the tokens of a minibatch; response: of each response, then over"
            " responses (GRPO's paper); constant: a sum over max_generated_len (Dr. GRPO); cispo:"
            " token, and the ratio is a bounded weight that has no gradient (MiniMax-M1)"
        ),
    )
    importance_level: Literal["token", "segment", "sequence"] | None = Field(
        default=None,
        description=(
            "what has a ratio of its own: each token, or a segment or sequence, by the geometric"
            " mean of its tokens' (GSPO); null: token, but with rloo there is no ratio"
        ),
    )
    delta: Positive | None = Field(
        default=None,
        description=(
            "bound of the ratio where the advantage is negative (INTELLECT-2); null: none, as PPO"
        ),
    )
    leave_out: list[Literal["truncated", "equal"]] = Field(
        default=[],
        description=(
            "responses that are no part of the loss. truncated: those that reached"
            " max_generated_len; equal: those whose advantages are all 0"
        ),
    )
    target_kl: Positive | None = Field(
        default=None,
        description=(
            "end an update before the policy takes a step from a KL(old || new) above it, in nats"
            " per token; null: never"
        ),
    )

    @property
    def clip(self) -> tuple[float, float]:
        """How far the ratio may be below and above 1."""
        low, high = self.cliprange if isinstance(self.cliprange, list) else [self.cliprange] * 2
        return low, high

    @model_validator(mode="after")
    def _bounds_a_ratio(self):
        if isinstance(self.cliprange, list) and len(self.cliprange) != 2:
            reason = (
                f"a list of {len(self.cliprange)}, but the ratio has two bounds: write one number,"
                " or [low, high] as in [0.2, 0.28]"
            )
            refuse([("cliprange", reason)])
        if self.type == "cispo":
            way_out = "since cispo bounds every ratio: leave it out, or set type=token"
            refuse(unread_keys(self, ["delta"], way_out))
        highest = 1 + self.clip[1]
        if self.delta is not None and self.delta <= highest:
            reason = (
                f"it is {self.delta:g}, but the ratio is clipped only above 1 + cliprange ="
                f" {highest:g}, and it must be larger: raise it, or leave it out"
            )
            refuse([("delta", reason)])
        return self


class PtxConfig(StrictModel):
    """The section `algorithm.ptx`: a term of the loss that imitates demonstrations."""

    file: FilePath = Field(description="demonstrations that the policy must not forget")
    coef: Positive = Field(description="of their loss, the mean of -log pi(y_t) over their tokens")
