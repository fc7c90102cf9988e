"""Settings that several algorithms share: the base classes of their config classes.

Each algorithm's module defines the config class of its section `algorithm:` in YAML, which declares
the keys that the algorithm reads:

    AlgorithmConfig                    every algorithm
      ActorCriticConfig                GAE and a critic                           trpo
        JointLossConfig                one loss trains policy and critic          a2c
          ClippedRatioConfig           the loss clips the policy's ratio          ppo, nlpo

Changing `algorithm.name` is enough to switch the algorithm: a shared setting that the chosen
algorithm does not read is not an error. It is dropped from the config and listed when the run
starts (`AlgorithmConfig.unused`). Any other key that the algorithm does not read is an error.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from fgrlhf.configs.strict import Coefficient, Count, Positive, StrictModel, refuse

KL_IN = "loss: k3 in the loss instead of log-ratios in the reward"


@dataclass(frozen=True)
class RunSettings:
    """Settings of other sections of a run's config that may not fit an algorithm.

    Attributes:
      samples_per_prompt: `env.train_num_samples_per_input`.
      do_sample, num_beams: how training generates responses, in
        `model.train_generation_kwargs`.
      shares_trunk: `model.value_model.policy_value_sharing`.
      dropout: `train.dropout`.
    """

    samples_per_prompt: int
    do_sample: bool
    num_beams: int
    shares_trunk: bool
    dropout: bool


class AdaptiveKLConfig(StrictModel):
    """The section `algorithm.adaptive_kl`."""

    target: Positive = Field(description="KL per response in nats")
    horizon: Count = Field(default=10_000, description="episodes over which kl_coef adapts")


class AlgorithmConfig(StrictModel):
    """Settings of every algorithm."""

    name: str = "python"  # the library's algorithms override it
    kl_coef: Coefficient = Field(
        default=0.2, description="coefficient of the KL from the reference"
    )
    adaptive_kl: AdaptiveKLConfig | None = Field(
        default=None, description="adapt kl_coef to reach a KL (Ziegler et al.); null: fixed"
    )
    kl_in: Literal["reward", "loss"] = Field(default="reward", description=KL_IN)
    gamma: float = Field(default=1.0, ge=0, le=1, description="discount per token")
    entropy_coef: Coefficient = Field(
        default=0.0, description="bonus on the entropy of the next token, in the loss"
    )

    _unused: tuple[str, ...] = PrivateAttr(())

    @property
    def unused(self) -> tuple[str, ...]:
        """Shared settings that the config gives and this algorithm does not read."""
        return self._unused

    def mistakes(self, run: RunSettings) -> list[str]:
        """Settings in other sections that do not fit this algorithm: one message each."""
        return []

    @model_validator(mode="wrap")
    @classmethod
    def _set_unused_aside(cls, tree: Any, handler):
        """Drop the shared settings that this algorithm does not read, and remember their names."""
        if not isinstance(tree, dict):
            return handler(tree)
        unused = SHARED_SETTINGS - cls.model_fields.keys()
        config = handler({key: value for key, value in tree.items() if key not in unused})
        config._unused = tuple(sorted(unused & tree.keys()))
        return config

    @model_validator(mode="after")
    def _adapts_a_coefficient(self):
        if self.kl_coef == 0 and self.adaptive_kl is not None:
            reason = (
                "it is not read, since kl_coef is 0 and the adapted values are multiples of it: set"
                " kl_coef above 0, or leave it out"
            )
            refuse([("adaptive_kl", reason)])
        return self


class ActorCriticConfig(AlgorithmConfig):
    """Settings of the algorithms with a critic: GAE and the critic's loss."""

    lam: float = Field(default=0.95, ge=0, le=1, description="lambda of GAE")
    whiten_rewards: bool = Field(
        default=False,
        description=(
            "divide the token rewards of a batch by their standard deviation; true: as published"
        ),
    )
    whiten_divides_by: Literal["std", "sqrt_std"] = Field(
        default="std", description="sqrt_std: as published (deviation D1)"
    )
    gae_start: Literal["own_end", "longest"] = Field(
        default="own_end", description="longest: as published (D3)"
    )
    cliprange_value: Positive | None = Field(
        default=0.2, description="in units of the (whitened) return; null: not clipped"
    )


class JointLossConfig(ActorCriticConfig):
    """Settings of a loss that trains policy and critic together."""

    pg_coef: Coefficient = Field(default=1.0, description="weight of the policy's loss")
    vf_coef: Coefficient = Field(default=1.0, description="weight of the critic's loss")


class ClippedRatioConfig(JointLossConfig):
    """Settings of PPO's loss, which clips the ratio of new to old policy."""

    cliprange: Positive = Field(
        default=0.2, description="clip the ratio to 1 - cliprange .. 1 + cliprange"
    )


SHARED_SETTINGS = frozenset(ClippedRatioConfig.model_fields) - {"name"}
