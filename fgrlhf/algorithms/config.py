"""The `algorithm` section: which on-policy algorithm, what all of them have, and each one's own
settings.

kl_coef, kl_target, kl_horizon and gamma stand under `ppo`, their published place, and so do the
settings of GAE, critic and clipping: an algorithm reads those it has from there. So one word,
`algorithm.name`, changes the algorithm and nothing else. docs/algorithms.md lists who reads what.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from fgrlhf.config import Coefficient, Count, Positive, StrictModel, refuse, unread_keys


class PPOConfig(StrictModel):
    kl_coef: Coefficient = 0.2
    kl_target: Positive | None = Field(
        None, description="steer kl_coef towards this KL per response (Ziegler et al.)"
    )
    kl_horizon: Count = 10_000
    lam: float = Field(0.95, ge=0, le=1)
    gamma: float = Field(1.0, ge=0, le=1)
    pg_coef: Coefficient = 1.0
    vf_coef: Coefficient = 1.0
    cliprange: Positive = 0.2
    cliprange_value: Positive | None = Field(
        0.2, description="in units of the (whitened) return; null: not clipped"
    )
    whiten_rewards: bool = Field(
        False,
        description=(
            "divide a batch's token rewards by their standard deviation; true: as published"
        ),
    )
    whiten_divides_by: Literal["std", "sqrt_std"] = Field(
        "std", description="sqrt_std: as published (deviation D1)"
    )
    gae_start: Literal["own_end", "longest"] = Field(
        "own_end", description="longest: as published (D3)"
    )

    @model_validator(mode="after")
    def _kl_is_steered(self):
        if self.kl_coef == 0:
            refuse(
                unread_keys(
                    self,
                    ["kl_target"],
                    "since kl_coef is 0 and what is steered are multiples of it: set kl_coef above"
                    " 0, or leave it out",
                )
            )
        if self.kl_target is None:
            refuse(
                unread_keys(
                    self, ["kl_horizon"], "since kl_target is null: set kl_target, or leave it out"
                )
            )
        return self


KL_IN = "loss: k3 in the loss instead of log-ratios in the reward"

KL = frozenset({"kl_coef", "kl_target", "kl_horizon"})
GAE = frozenset({"lam", "whiten_rewards", "whiten_divides_by", "gae_start"})
CRITIC = frozenset({"vf_coef", "cliprange_value"})


class AlgorithmConfig(StrictModel):
    """What every algorithm has."""

    entropy_coef: Coefficient = Field(
        0.0, description="bonus on the entropy of the next token, in the loss"
    )
    kl_in: Literal["reward", "loss"] = Field("reward", description=KL_IN)
    normalize_aspects: bool = Field(
        False,
        description=(
            "divide each reward by its standard deviation over the batch's responses before"
            " weighting"
        ),
    )

    critic: ClassVar[bool]
    reads: ClassVar[frozenset[str]]  # keys of `ppo`

    @model_validator(mode="before")
    @classmethod
    def _keys_of_ppo(cls, tree: Any) -> Any:
        names = (
            sorted(set(tree) & (set(PPOConfig.model_fields) - set(cls.model_fields)))
            if isinstance(tree, dict)
            else []
        )
        problems = [cls._misplaced(name) for name in names]
        if problems:
            raise ValueError("; ".join(problems))
        return tree

    @classmethod
    def _misplaced(cls, key: str) -> str:
        name = cls.model_fields["name"].default
        if key in cls.reads:
            return (
                f"`{key}` stands under ppo, where all algorithms that have it read it: set"
                f" ppo.{key}"
            )
        if key in GAE | CRITIC and not cls.critic:
            return (
                f"`{key}` steers GAE or the critic, and `{name}` has neither: it compares samples"
                f" instead. Leave algorithm.{key} out, or take an algorithm with a critic: ppo,"
                " a2c, trpo, nlpo"
            )
        return f"`{key}` is not a setting of `{name}`: leave algorithm.{key} out"


class PPOAlgorithm(AlgorithmConfig):
    """Its own settings are the `ppo` section."""

    name: Literal["ppo"] = "ppo"
    critic: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset(PPOConfig.model_fields)


class A2CAlgorithm(AlgorithmConfig):
    name: Literal["a2c"] = "a2c"
    critic: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset(PPOConfig.model_fields) - {"cliprange"}


class ReinforceAlgorithm(AlgorithmConfig):
    name: Literal["reinforce"] = "reinforce"
    baseline: Literal["none", "mean", "position"] = Field(
        "position",
        description=(
            "subtracted: the batch's mean return, or its mean reward-to-go at the same token"
        ),
    )
    critic: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = KL | {"gamma"}


class GroupAlgorithm(AlgorithmConfig):
    """What compares the samples of one prompt."""

    credit: Literal["segment", "response"] = Field(
        "segment",
        description=(
            "response: one advantage, of the summed rewards; segment: reward-to-go, aspect by"
            " aspect"
        ),
    )
    critic: ClassVar[bool] = False
    reads: ClassVar[frozenset[str]] = KL | {"gamma"}


class RLOOAlgorithm(GroupAlgorithm):
    name: Literal["rloo"] = "rloo"


class GRPOAlgorithm(GroupAlgorithm):
    name: Literal["grpo"] = "grpo"
    normalize: bool = Field(
        True, description="divide by the standard deviation of the prompt's samples"
    )
    clip_low: float = Field(0.2, gt=0, le=1)
    clip_high: Positive = 0.2
    kl_in: Literal["reward", "loss"] = Field("loss", description=KL_IN)


class GPGAlgorithm(GroupAlgorithm):
    name: Literal["gpg"] = "gpg"
    kl_in: Literal["reward", "loss"] = Field("loss", description=KL_IN)


class TRPOAlgorithm(AlgorithmConfig):
    name: Literal["trpo"] = "trpo"
    max_kl: Positive = Field(0.01, description="bound of a step's KL(old || new), nats per token")
    cg_steps: int = Field(10, ge=1, le=1000)
    cg_damping: Coefficient = Field(
        0.1, description="added to the Fisher matrix, as a part of the curvature along the gradient"
    )
    line_search_steps: int = Field(
        10, ge=1, le=100, description="halvings tried before the step is given up"
    )
    critic: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = KL | GAE | {"gamma", "cliprange_value"}


class NLPOAlgorithm(AlgorithmConfig):
    name: Literal["nlpo"] = "nlpo"
    top_p: float | None = Field(
        0.9,
        gt=0,
        le=1,
        description="tokens allowed: the mask policy's smallest set of this probability",
    )
    top_k: Count | None = Field(
        None, description="tokens allowed: the mask policy's k most probable"
    )
    sync_every: Count = Field(
        10, description="rollout steps after which the mask policy becomes the policy"
    )
    critic: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset(PPOConfig.model_fields)

    @model_validator(mode="after")
    def _one_mask(self):
        if (self.top_p is None) == (self.top_k is None):
            raise ValueError(
                f"top_p and top_k are {'both null' if self.top_p is None else 'both given'}, but"
                " nlpo's mask is made by exactly one of them: set algorithm.top_p=0.9, or"
                " algorithm.top_k=50 with algorithm.top_p=null, or use ppo"
            )
        return self


def _name(tree: Any) -> Any:
    return tree.get("name", "ppo") if isinstance(tree, dict) else getattr(tree, "name", "ppo")


AnyAlgorithm = Annotated[
    Annotated[PPOAlgorithm, Tag("ppo")]
    | Annotated[A2CAlgorithm, Tag("a2c")]
    | Annotated[ReinforceAlgorithm, Tag("reinforce")]
    | Annotated[RLOOAlgorithm, Tag("rloo")]
    | Annotated[GRPOAlgorithm, Tag("grpo")]
    | Annotated[GPGAlgorithm, Tag("gpg")]
    | Annotated[TRPOAlgorithm, Tag("trpo")]
    | Annotated[NLPOAlgorithm, Tag("nlpo")],
    Discriminator(_name),
]
