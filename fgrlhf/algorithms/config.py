"""The settings of the algorithms: a config class for each, and base classes for what they share.

The config class of an algorithm declares the keys of the section `algorithm:` that it reads:

    AlgorithmConfig                    every algorithm
      ActorCriticConfig                GAE and a critic                           trpo
        JointLossConfig                one loss trains policy and critic          ppo, a2c
          NLPOConfig                   and tokens are masked                      nlpo
      SamplesConfig                    compares the samples of a prompt           online_dpo
        GroupConfig                    by response or by segment                  gpg
          ClippedGroupConfig           the loss clips the policy's ratio          rloo, grpo
      ReinforceConfig                  a baseline from the batch                  reinforce
      DivergenceConfig                 a teacher instead of rewards               sdpo, distill

Changing `algorithm.name` is enough to switch the algorithm: a shared setting that the chosen
algorithm does not read is not an error. It is dropped from the config and listed when the run
starts (`AlgorithmConfig.unused`). Any other key that the algorithm does not read is an error.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, model_validator

from fgrlhf.algorithms.sections import (
    EntropyConfig,
    GAEConfig,
    KLConfig,
    LossConfig,
    NumberOrByName,
    PtxConfig,
    Share,
    WhitenConfig,
)
from fgrlhf.configs.strict import (
    Coefficient,
    Count,
    FilePath,
    Positive,
    StrictModel,
    refuse,
    unread_keys,
)

CRITIC = "critic"  # folder of a saved critic, beside the policy in best/ and final/
KL_ASPECT = "kl"  # the KL penalty in the reward, as the aspect of a critic
OF_A_RATIO = ("cliprange", "importance_level", "delta", "target_kl")  # keys of `loss`


@dataclass(frozen=True)
class RunSettings:
    """Settings of other sections of a run's config that may not fit an algorithm.

    Attributes:
      samples_per_prompt: `env.train_num_samples_per_input`.
      do_sample, num_beams: how training generates responses, in
        `model.train_generation_kwargs`.
      shares_trunk: `model.value_model.policy_value_sharing`.
      dropout: `train.dropout`.
      prompts_per_process: `train.sampling_batch_size_per_card`.
      n_minibatches, micro_batch_size: those of `train`.
    """

    samples_per_prompt: int
    do_sample: bool
    num_beams: int
    shares_trunk: bool
    dropout: bool
    prompts_per_process: int
    n_minibatches: int
    micro_batch_size: int


class AlgorithmConfig(StrictModel):
    """Settings of every algorithm."""

    name: str = "python"  # the library's algorithms override it
    kl: KLConfig = KLConfig()
    gamma: float = Field(default=1.0, ge=0, le=1, description="discount per token")
    entropy: EntropyConfig = EntropyConfig()
    loss: LossConfig = LossConfig()
    ptx: PtxConfig | None = Field(
        default=None,
        description="demonstrations in each update, as in PPO-ptx (InstructGPT); null: none",
    )
    normalize_aspects: Literal["batch", "running", "group"] | None = Field(
        default=None,
        description=(
            "batch: divide each reward by its standard deviation over the batch's responses before"
            " weighting; running: over those of all steps so far; group: its advantages by their"
            " spread over the samples of a prompt; null: no"
        ),
    )

    kl_part_of: ClassVar[Literal["reward", "loss"]] = "reward"  # for `kl.part_of: null`
    reads_rewards: ClassVar[bool] = True
    loss_type: ClassVar[str | None] = None  # the mean of the loss; None: `loss.type`
    trained_samples: ClassVar[int | None] = None  # of a prompt that an update reads; None: all
    _unused: tuple[str, ...] = PrivateAttr(())

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL is a term of the loss, and not of the reward."""
        return (self.kl.part_of or self.kl_part_of) == "loss"

    @property
    def reads_kl_coef(self) -> bool:
        """Whether the coefficient of the KL changes what is learned."""
        return self.kl.coef > 0

    @property
    def unused(self) -> tuple[str, ...]:
        """Shared settings that the config gives and this algorithm does not read."""
        given = [key for key, _ in unread_keys(self.loss, self.unread_of_loss, "")]
        return tuple(sorted([*self._unused, *(f"loss.{key}" for key in given)]))

    @property
    def unread_of_loss(self) -> Collection[str]:
        """The keys of `loss` that this algorithm does not read: without a ratio, those of it."""
        return OF_A_RATIO

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that it reads."""
        return [] if self.ptx is None else [self.ptx.file]

    def mistakes(self, run: RunSettings) -> list[str]:
        """Settings in other sections that do not fit this algorithm: one message each."""
        return []

    def _ptx_mistakes(self, reason: str) -> list[str]:
        """The message of an algorithm that cannot have `ptx`."""
        if self.ptx is None:
            return []
        return [f"algorithm.ptx: {reason}: leave it out, or use algorithm.name=ppo"]

    @model_validator(mode="after")
    def _compares_samples(self):
        if self.normalize_aspects == "group" and not isinstance(self, SamplesConfig):
            names = ", ".join(kind.model_fields["name"].default for kind in COMPARING_CONFIGS)
            reason = (
                f"group: {self.name} does not compare the samples of a prompt, as {names} do: use"
                " batch"
            )
            refuse([("normalize_aspects", reason)])
        return self

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


class ActorCriticConfig(AlgorithmConfig):
    """Settings of the algorithms with a critic: GAE and the critic's loss."""

    critic: Literal["scalar", "per_aspect", "monte_carlo"] = Field(
        default="scalar",
        description=(
            "scalar: one value, of the summed rewards; per_aspect: a value of each reward, and of"
            " the KL penalty in the reward; monte_carlo: none is learned, but segments start with"
            " the mean return of more samples (VinePPO)"
        ),
    )
    gamma: NumberOrByName = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=1.0, description="discount per token; with critic=per_aspect also {NAME: number}"
    )
    gae: GAEConfig = GAEConfig()
    whiten: WhitenConfig = WhitenConfig()
    cliprange_value: Positive | None = Field(
        default=0.2, description="in units of the (whitened) return; null: not clipped"
    )

    def gamma_of(self, aspect: str | None) -> float:
        """The discount of an aspect, or of the sum (None). A name that is left out has 1."""
        return _number(self, "gamma", aspect)

    def lam_of(self, aspect: str | None) -> float:
        """The lambda of an aspect, or of the sum (None). A name that is left out has 0.95."""
        return _number(self.gae, "lam", aspect)

    def numbers_by_name(self) -> dict[str, dict[str, float]]:
        """The keys of this section that have a number for each reward, and these numbers."""
        values = {"gamma": self.gamma, "gae.lam": self.gae.lam}
        return {key: value for key, value in values.items() if isinstance(value, dict)}

    @model_validator(mode="after")
    def _reads_every_aspect(self):
        mistakes = []
        if self.critic != "per_aspect":
            reason = "a number for each reward needs critic=per_aspect: give one number, or set it"
            mistakes = [(key, reason) for key in self.numbers_by_name()]
        if self.critic == "monte_carlo":
            reason = (
                "the samples of a value are another batch, with another spread, so its unit would"
                " be another: leave it out"
            )
            if self.whiten.rewards:
                mistakes.append(("whiten.rewards", reason))
            if self.normalize_aspects in ("batch", "running"):
                mistakes.append(("normalize_aspects", reason))
        elif self.critic == "per_aspect" and self.whiten.rewards:
            reason = (
                "it divides the sum of the rewards, but the critic has a value of each: set it to"
                " false; normalize_aspects=batch gives every reward the spread 1"
            )
            mistakes = [("whiten.rewards", reason)]
        refuse(mistakes)
        return self


def _number(section: StrictModel, key: str, aspect: str | None) -> float:
    value = getattr(section, key)
    if not isinstance(value, dict):
        return value
    return value.get(aspect, type(section).model_fields[key].default)


class JointLossConfig(ActorCriticConfig):
    """Settings of a loss that trains policy and critic together."""

    pg_coef: Coefficient = Field(default=1.0, description="weight of the policy's loss")
    vf_coef: Coefficient = Field(default=1.0, description="weight of the critic's loss")


SHARED_SETTINGS = frozenset(JointLossConfig.model_fields) - {"name"}


# ---- the algorithms ----------------------------------------------------------------------------


class PPOConfig(JointLossConfig):
    """Proximal policy optimisation; or, without its ratio, advantage actor-critic."""

    name: Literal["ppo", "a2c"] = "ppo"

    @property
    def unread_of_loss(self) -> Collection[str]:
        return OF_A_RATIO if self.name == "a2c" else ()


class NLPOConfig(JointLossConfig):
    """PPO restricted to plausible tokens."""

    name: Literal["nlpo"] = "nlpo"
    top_p: float | None = Field(
        default=0.9,
        gt=0,
        le=1,
        description="allow the mask policy's smallest set of tokens with this probability",
    )
    top_k: Count | None = Field(
        default=None, description="allow the mask policy's k most probable tokens"
    )
    sync_every: Count = Field(
        default=10, description="rollout steps between updates of the mask policy"
    )

    @property
    def unread_of_loss(self) -> Collection[str]:
        return ()

    @model_validator(mode="after")
    def _one_kind_of_mask(self):
        if (self.top_p is None) == (self.top_k is None):
            given = "both null" if self.top_p is None else "both given"
            raise ValueError(
                f"top_p and top_k are {given}, but nlpo's mask needs exactly one of them: set"
                " algorithm.top_p=0.9, or algorithm.top_k=50 with algorithm.top_p=null, or use ppo"
            )
        return self

    def mistakes(self, run: RunSettings) -> list[str]:
        reason = (
            "`nlpo` trains the masked policy, which gives some tokens of demonstrations no chance"
        )
        mistakes = self._ptx_mistakes(reason)
        if run.num_beams == 1:
            return mistakes
        return [
            *mistakes,
            "model.train_generation_kwargs.num_beams is more than 1, but `nlpo`"
            " masks tokens as they are sampled: set num_beams=1 and do_sample=true, or use"
            " algorithm.name=ppo",
        ]


class TRPOConfig(ActorCriticConfig):
    """Trust region policy optimisation."""

    name: Literal["trpo"] = "trpo"
    max_kl: Positive = Field(
        default=0.01, description="bound on a step's KL(old || new), nats per token"
    )
    cg_steps: int = Field(default=10, ge=1, le=1000, description="steps of conjugate gradients")

    @property
    def unread_of_loss(self) -> Collection[str]:
        return tuple(LossConfig.model_fields)  # its objective is no such loss

    def mistakes(self, run: RunSettings) -> list[str]:
        mistakes = self._ptx_mistakes("`trpo` has a step of its own, which bounds one objective")
        if run.shares_trunk:
            mistakes.append(
                "model.value_model.policy_value_sharing is true, but `trpo` bounds how far the"
                " policy moves, and a critic on the same trunk would move it too: set it to false"
                " and give model.value_model.ckpt, or use algorithm.name=ppo"
            )
        if run.dropout:
            mistakes.append(
                "train.dropout is true, but `trpo` compares the policy before and after a step, and"
                " with dropout every pass differs: set train.dropout=false, or use"
                " algorithm.name=ppo"
            )
        return mistakes


class ReinforceConfig(AlgorithmConfig):
    """Reward-to-go minus a baseline from the batch."""

    name: Literal["reinforce"] = "reinforce"
    baseline: Literal["none", "mean", "position"] = Field(
        default="position",
        description=(
            "subtract the batch's mean return (mean) or mean reward-to-go at the token (position)"
        ),
    )


class SamplesConfig(AlgorithmConfig):
    """Settings of the algorithms that compare the samples of a prompt."""

    def mistakes(self, run: RunSettings) -> list[str]:
        K = run.samples_per_prompt
        mistakes = []
        if K < 2:
            mistakes.append(
                f"env.train_num_samples_per_input is {K}, but `{self.name}` compares the samples of"
                " one prompt, which needs a second one: set it to 2 or more, or use"
                " algorithm.name=reinforce"
            )
        if not run.do_sample:
            mistakes.append(
                "model.train_generation_kwargs.do_sample is false, but"
                f" `{self.name}` compares the samples of one prompt, which would all be the same:"
                " set do_sample=true and num_beams=1, or use algorithm.name=reinforce"
            )
        return mistakes


class GroupConfig(SamplesConfig):
    """Settings of the group-relative algorithms."""

    credit: Literal["segment", "response"] = Field(
        default="segment",
        description=(
            "response: one advantage per response, from the summed rewards; segment: reward-to-go"
            " per aspect and segment"
        ),
    )


class ClippedGroupConfig(GroupConfig):
    """Settings of the group-relative algorithms whose loss clips the ratio of new to old policy."""

    @property
    def has_ratio(self) -> bool:
        """Whether the loss has a ratio, so that a rollout can be used for several epochs."""
        return True

    @property
    def unread_of_loss(self) -> Collection[str]:
        return () if self.has_ratio else OF_A_RATIO


class RLOOConfig(ClippedGroupConfig):
    """REINFORCE leave-one-out; its loss has a ratio if `loss.importance_level` is set."""

    name: Literal["rloo"] = "rloo"

    @property
    def has_ratio(self) -> bool:
        return self.loss.importance_level is not None


class GRPOConfig(ClippedGroupConfig):
    """Group relative policy optimisation."""

    name: Literal["grpo"] = "grpo"
    scale: Literal["group", "batch", "none"] = Field(
        default="group",
        description=(
            "divide the advantages by their standard deviation over the samples of the prompt, or"
            " of the whole batch"
        ),
    )

    kl_part_of = "loss"


class GPGConfig(GroupConfig):
    """Group policy gradient."""

    name: Literal["gpg"] = "gpg"

    kl_part_of = "loss"


class OnlineDPOConfig(SamplesConfig):
    """DPO on the best and the worst sample of each prompt."""

    name: Literal["online_dpo"] = "online_dpo"
    beta: Positive = Field(default=0.1, description="strength of the KL constraint, as in DPO")
    pair_loss: Literal["sigmoid", "ipo", "hinge"] = Field(
        default="sigmoid", description="of a pair: the same names as `dpo.loss`"
    )
    credit: ClassVar[str] = "response"  # a pair is one of whole responses

    loss_type = "response"  # the mean over pairs, whatever the lengths of their responses
    trained_samples = 2  # the pair

    @property
    def reads_kl_coef(self) -> bool:
        return super().reads_kl_coef and self.kl_in_loss

    @property
    def unread_of_loss(self) -> Collection[str]:
        return [key for key in LossConfig.model_fields if key != "leave_out"]

    @property
    def unused(self) -> tuple[str, ...]:
        given = () if self.kl_in_loss else self.kl.model_fields_set - {"part_of", "reference"}
        return tuple(sorted([*super().unused, *(f"kl.{key}" for key in given)]))

    def mistakes(self, run: RunSettings) -> list[str]:
        mistakes = super().mistakes(run)
        if run.prompts_per_process % run.n_minibatches:
            mistakes.append(
                f"train.sampling_batch_size_per_card is {run.prompts_per_process}, but"
                f" `{self.name}` needs the two responses of a pair in one minibatch: make it a"
                f" multiple of train.n_minibatches={run.n_minibatches}"
            )
        if run.micro_batch_size % 2:
            mistakes.append(
                f"train.micro_batch_size is {run.micro_batch_size}, but `{self.name}` needs the two"
                " responses of a pair in one forward pass: make it even"
            )
        return mistakes


class DivergenceConfig(AlgorithmConfig):
    """Settings of the algorithms whose policy follows a teacher, token by token."""

    kl: KLConfig = KLConfig(coef=0)  # the teacher is what the policy should stay near
    beta: Share = Field(
        default=0.5,
        description="0: KL(teacher || policy); 1: KL(policy || teacher); between them their JSD",
    )

    kl_part_of = "loss"
    reads_rewards = False  # they are only logged, so these are no keys:
    gamma: ClassVar[float] = 1.0  # pyright: ignore[reportIncompatibleVariableOverride]
    normalize_aspects: ClassVar[None] = None  # pyright: ignore[reportIncompatibleVariableOverride]


class DistillConfig(DivergenceConfig):
    """On-policy distillation of another policy."""

    name: Literal["distill"] = "distill"
    teacher: FilePath = Field(description="folder or hub name of a policy with the same tokens")

    @property
    def inputs(self) -> list[str]:
        return [*super().inputs, self.teacher]


class SDPOConfig(DivergenceConfig):
    """Self-distillation from feedback: the teacher is the policy that has read it."""

    name: Literal["sdpo"] = "sdpo"
    teacher_prompt: str = Field(
        default="{prompt} {reference}",
        description=(
            "what the teacher reads: {prompt}, and {reference} or a key of the prompt's row, such"
            " as {reason}"
        ),
    )

    @model_validator(mode="after")
    def _tells_the_teacher_more(self):
        fields = set(fields_of(self.teacher_prompt))
        if "prompt" not in fields or fields == {"prompt"}:
            reason = (
                "the teacher must read {prompt} and what the policy does not read, such as"
                " {reference}: name both"
            )
            refuse([("teacher_prompt", reason)])
        return self


def fields_of(template: str) -> list[str]:
    """The names in braces of a template."""
    return re.findall(r"\{([^{}]+)\}", template)


COMPARING_CONFIGS = (RLOOConfig, GRPOConfig, GPGConfig, OnlineDPOConfig)
