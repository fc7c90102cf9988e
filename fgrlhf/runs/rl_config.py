"""The config of an RL run: the sections of its YAML file. The published files load unchanged.

A key that the chosen mode does not read is an error if its value is not the default. Two kinds of
unread keys only cause a note at the start, because a single setting enables them: settings of other
algorithms (`RLConfig.unused_settings`), and those of a disabled tracker (`LoggingConfig.notes`).
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from fgrlhf.algorithms.config import CRITIC, KL_ASPECT, ActorCriticConfig, PPOConfig, RunSettings
from fgrlhf.algorithms.registry import (
    AnyAlgorithm,
    algorithm_class,
    algorithms_with_critic,
    own_hooks,
    read_with_ppo_section,
)
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.sections import (
    ABOUT_MIXTURES,
    PARTS_OF_THE_POLICY,
    GenerationConfig,
    PolicyConfig,
    PolicyEvaluationConfig,
    PolicyTrainConfig,
    ReferenceConfig,
    RunConfig,
    Sampling,
    TrainFile,
    Warmup,
    files_of,
)
from fgrlhf.configs.strict import (
    BatchSize,
    Count,
    Epsilon,
    FilePath,
    NonNegativeCount,
    Positive,
    Rate,
    Seed,
    StrictModel,
    Temperature,
    refuse,
    unread_keys,
)
from fgrlhf.configs.user_class import ClassPath
from fgrlhf.metrics.config import (
    ABOUT_METRICS,
    EvaluationMetrics,
    GuardConfig,
    best_metric_mistakes,
    models_of,
    unwatchable,
)
from fgrlhf.metrics.pooled import NOT_REWARDS
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.samplers.config import AnySampler, LocalSamplerConfig, VllmSamplerConfig

if TYPE_CHECKING:
    from fgrlhf.environments import Conversations
    from fgrlhf.models.base import Policy


class ValueConfig(StrictModel):
    """The section `model.value_model`: the critic."""

    ckpt: FilePath | None = Field(
        default=None,
        description="folder or hub name of its trunk, or a critic of a run: RUN/best/critic",
    )
    policy_value_sharing: bool = Field(
        default=False, description="the critic is a head on the policy's hidden states"
    )
    train_top_layers: NonNegativeCount | None = Field(
        default=None,
        description=(
            "train only this many layers of the critic's trunk, counted from the top, and its head;"
            " 0: only the head; null: all. If ckpt and this number are the policy's, both share the"
            " frozen layers"
        ),
    )

    @model_validator(mode="after")
    def _one_trunk(self):
        if not self.policy_value_sharing:
            return self
        # a shared critic may start from the head of a saved one; `saved_critic` checks the folder
        is_critic = self.ckpt is not None and Path(self.ckpt).name == CRITIC
        mistakes = unread_keys(
            self,
            ["train_top_layers"] if is_critic else ["ckpt", "train_top_layers"],
            "since policy_value_sharing is true and the critic reads the policy's hidden states: "
            "leave it out, or set policy_value_sharing=false",
        )
        refuse(mistakes)
        return self


class RLModelConfig(PolicyConfig):
    """The section `model` of RL."""

    value_model: ValueConfig = Field(
        default=ValueConfig(), description="the critic; algorithms without one do not need it"
    )
    train_generation_kwargs: GenerationConfig = GenerationConfig()


class EnvConfig(StrictModel):
    """The section `env`: what the policy responds to, how often, and the log-probabilities."""

    of: ClassPath | None = Field(
        default=None,
        description=(
            "package.module.Class with `reply(prompt, messages)`, with which the policy has"
            " conversations: docs/environments.md; null: it responds to prompts"
        ),
    )
    max_turns: Count = Field(default=4, description="most turns of the policy in a conversation")
    train_num_samples_per_input: BatchSize = Field(
        default=4, description="responses per prompt in a rollout"
    )
    logprob_temperature: Temperature | None = Field(
        default=None, description="temperature of ratio and KL; null: the sampling temperature"
    )
    target_reward_std: Positive | None = Field(
        default=None,
        description=(
            "sample at the temperature times this over the standard deviation of the last step's"
            " rewards, at least 0.5 and at most 2 times it; null: at the temperature"
        ),
    )
    logprob_truncated: bool = Field(
        default=False,
        description="ratio and KL are of the distribution that top_k, top_p and min_p leave (D5)",
    )

    @model_validator(mode="after")
    def _conversation_is_whole(self):
        if not self.has_conversations:
            refuse(
                unread_keys(self, ["max_turns"], "since `of` is null: set it, or leave this out")
            )
        return self

    @property
    def has_conversations(self) -> bool:
        """Whether the policy talks with an environment, over several turns."""
        return self.of is not None

    def build(self, policy: "Policy") -> "Conversations | None":
        """The conversations that the policy has; None: it responds to prompts."""
        if self.of is None:
            return None
        from fgrlhf.environments import make_conversations

        return make_conversations(self.of, self.max_turns, policy)


class RLTrainConfig(PolicyTrainConfig):
    """The section `train` of RL."""

    total_episodes: Count = Field(default=80_000, description="responses sampled in the whole run")
    sampling_batch_size_per_card: BatchSize = Field(
        default=8, description="prompts per rollout and process"
    )
    n_minibatches: BatchSize = Field(default=1, description="optimiser steps per PPO epoch")
    n_ppo_epoch_per_rollout: Count = Field(
        default=4,
        description=(
            "for ppo, grpo, nlpo, online_dpo, trpo's critic, and rloo with loss.importance_level;"
            " the others take one epoch"
        ),
    )
    lr: Rate = Field(default=1e-5, description="learning rate of the policy")
    value_lr: Rate | None = Field(default=None, description="null: lr")
    warmup_steps: Warmup = Field(
        default=100, description="rollout steps; below 1: a share of all steps"
    )
    n_critic_warmup_steps: NonNegativeCount = Field(
        default=0, description="first rollout steps in which only the critic learns"
    )
    adam_eps: Epsilon = Field(default=1e-5, description="epsilon of Adam")
    kl_threshold: Positive = Field(
        default=10.0,
        description=(
            "stop after the batch KL has exceeded it kl_patience times; a policy whose dev KL"
            " exceeds it is never the best one"
        ),
    )
    kl_patience: Count = Field(default=5, description="see kl_threshold")
    max_grad_norm: Positive | None = Field(
        default=0.5, description="bound of the norm of the gradient; null: not clipped"
    )
    dropout: Literal[False, True, "updates"] = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=False,
        description="true: use dropout in rollouts and updates; updates: as published (D4)",
    )
    minibatches: Literal["shuffled", "published"] = Field(
        default="shuffled",
        description=(
            "shuffled: by prompt, and the loss is a mean over all tokens; published: in order, and"
            " the losses of micro-batches are added (D6)"
        ),
    )
    guard: GuardConfig | None = Field(
        default=None,
        description="watch for a policy that exploits its reward: docs/rewards.md, A guard",
    )

    def check_sizes(self, episodes_per_step: int, total_steps: int, world: int) -> None:
        """Raise `UserError` if the sizes of a step on `world` processes do not fit together."""
        if episodes_per_step % (self.n_minibatches * world):
            raise UserError(
                f"{episodes_per_step} rollouts per step cannot be split evenly into"
                f" train.n_minibatches={self.n_minibatches} minibatches on {world} processes:"
                " change train.n_minibatches, train.sampling_batch_size_per_card or"
                " env.train_num_samples_per_input"
            )
        if self.n_critic_warmup_steps >= total_steps:
            raise UserError(
                f"train.n_critic_warmup_steps={self.n_critic_warmup_steps}, but"
                f" train.total_episodes={self.total_episodes} is only {total_steps} steps: the"
                " policy would never learn. Lower the former or raise the latter"
            )

    def size_notes(
        self, episodes_per_step: int, total_steps: int, warmup_steps: int
    ) -> Iterator[str]:
        """What a user may not expect of the sizes of a step."""
        episodes = total_steps * episodes_per_step
        if episodes > self.total_episodes:
            yield (
                f"note: a step has {episodes_per_step} episodes, so the run has {episodes}"
                f" instead of train.total_episodes={self.total_episodes}"
            )
        if self.n_critic_warmup_steps + warmup_steps >= total_steps:
            yield (
                f"note: the learning rate warms up over train.warmup_steps={self.warmup_steps:g}"
                f" steps of {total_steps}: it never reaches train.lr"
            )


class RLEvaluationConfig(PolicyEvaluationConfig):
    """The section `evaluation` of RL."""

    metric: str = Field(
        default="reward", description="dev metric that picks the best checkpoint, higher is better"
    )


class RLDataConfig(StrictModel):
    """The section `data` of RL."""

    train_file: TrainFile | None = Field(
        default=None,
        description=f"prompts to train on; null: the task generates them. {ABOUT_MIXTURES}",
    )
    dev_file: FilePath | None = Field(
        default=None, description="prompts to evaluate on; null: the task generates them"
    )
    seed: Seed = Field(default=0, description="of generated prompts: their order, or a sample")


class RLConfig(RunConfig):
    """The config of a whole run. `fgrlhf.task_config.rl_config` adds a task's reward kinds."""

    model: RLModelConfig
    reward: dict[str, RewardKind]
    env: EnvConfig = EnvConfig()
    algorithm: AnyAlgorithm = PPOConfig()
    train: RLTrainConfig = RLTrainConfig()
    data: RLDataConfig = RLDataConfig()
    sampler: AnySampler = LocalSamplerConfig()
    evaluation: RLEvaluationConfig = RLEvaluationConfig()
    evaluation_metrics: EvaluationMetrics = Field(default=[], description=ABOUT_METRICS)

    @model_validator(mode="wrap")
    @classmethod
    def _published_ppo_section(cls, tree: Any, handler):
        """Accept the settings of `algorithm` under `ppo`, as in the published files."""
        if isinstance(tree, dict) and "ppo" in tree:
            return read_with_ppo_section(tree, handler)
        return handler(tree)

    def mistakes(self) -> list[str]:
        return [
            *super().mistakes(),
            *self._reward_mistakes(),
            *self._sampling_mistakes(),
            *self._critic_mistakes(),
            *self._aspect_mistakes(),
            *self._monte_carlo_mistakes(),
            *self._conversation_mistakes(),
            *self.algorithm.mistakes(self._settings_for_the_algorithm()),
            *self._sampler_mistakes(),
            *best_metric_mistakes(self.evaluation.metric, self.evaluation_metrics),
            *self._guard_mistakes(),
        ]

    @property
    def reference(self) -> tuple[str, ReferenceConfig]:
        return "algorithm.kl.reference", self.algorithm.kl.reference

    def _guard_mistakes(self) -> list[str]:
        """Monitors and settings with which a guard could not work."""
        guard = self.train.guard
        if guard is None:
            return []
        mistakes = []
        for monitor in guard.monitors:
            reason = unwatchable(monitor.metric, monitor.bound, self.evaluation_metrics)
            if not reason and monitor.bound is None and not self.reward:
                reason = (
                    "which must not fall while the reward rises, but the run has no reward: give a"
                    f" bound, as in `{monitor.metric} >= NUMBER`"
                )
            if reason:
                mistakes.append(f"train.guard.on has `{monitor.metric}`, {reason}")
        if guard.kl_coef > 1 and not self.algorithm.reads_kl_coef:
            is_zero = self.algorithm.kl.coef == 0
            fact = "is 0" if is_zero else f"{self.algorithm.name} reads only in the loss"
            way_out = "a coefficient above 0" if is_zero else "algorithm.kl.part_of=loss"
            mistakes.append(
                f"train.guard.kl_coef={guard.kl_coef:g} multiplies algorithm.kl.coef, which {fact}:"
                f" set train.guard.kl_coef=1, or {way_out}"
            )
        every, save_every = self.evaluation.every_steps, self.train.save_every_steps
        if save_every and (every is None or every % save_every):
            mistakes.append(
                "train.guard needs a checkpoint of each policy that is evaluated: leave out"
                f" train.save_every_steps={save_every}, or set evaluation.every_steps to a multiple"
            )
        return mistakes

    def _settings_for_the_algorithm(self) -> RunSettings:
        generation = self.model.train_generation_kwargs
        return RunSettings(
            samples_per_prompt=self.env.train_num_samples_per_input,
            do_sample=generation.do_sample,
            num_beams=generation.num_beams,
            shares_trunk=self.model.value_model.policy_value_sharing,
            dropout=bool(self.train.dropout),
            prompts_per_process=self.train.sampling_batch_size_per_card,
            n_minibatches=self.train.n_minibatches,
            micro_batch_size=self.train.micro_batch_size,
        )

    def _reward_mistakes(self) -> list[str]:
        """Names of rewards that would read as statistics in logs and summaries."""
        mistakes = []
        for name in self.reward:
            statistic = name.rpartition("/")[2]
            if statistic in NOT_REWARDS:
                mistakes.append(
                    f"reward.{name}: `reward/{statistic}` is a statistic in logs and summaries:"
                    " give the reward another name"
                )
        return mistakes

    def _sampling_mistakes(self) -> list[str]:
        mistakes = []
        beams = self.model.train_generation_kwargs.num_beams
        K = self.env.train_num_samples_per_input
        if beams > 1 and K > 1:
            mistakes.append(
                f"model.train_generation_kwargs.num_beams is {beams}, but beam search"
                f" finds one response per prompt, and env.train_num_samples_per_input is {K}: set"
                " num_beams=1 and do_sample=true, or set env.train_num_samples_per_input=1"
            )
        generation = self.model.train_generation_kwargs
        if self.env.target_reward_std is not None:
            mistakes += self._temperature_mistakes()
        settings: list[tuple[str, Any, Any]] = []  # key, value, default
        settings.append(("env.logprob_truncated", self.env.logprob_truncated, False))
        for key in PARTS_OF_THE_POLICY:
            values = (getattr(generation, key), getattr(GenerationConfig(), key))
            settings.append((f"model.train_generation_kwargs.{key}", *values))
        for key, value, default in settings:
            if value == default:
                continue
            fact, way_out = f"{key} is {str(value).lower()}, but", f"set {key}={default}".lower()
            if isinstance(self.sampler, VllmSamplerConfig):
                mistakes.append(
                    f"{fact} the server of `sampler` does not tell what is left of its"
                    f" distribution: {way_out}"
                )
            if "training_policy" in own_hooks(algorithm_class(self.algorithm)):
                mistakes.append(
                    f"{fact} the log-probabilities of algorithm.name={self.algorithm.name} have a"
                    f" mask of their own: {way_out}"
                )
        return mistakes

    def _temperature_mistakes(self) -> list[str]:
        """Settings with which the sampling temperature cannot follow the rewards."""
        fact = (
            "env.target_reward_std adapts the sampling temperature to the last step's rewards, but"
        )
        mistakes = []
        if not self.model.train_generation_kwargs.do_sample:
            mistakes.append(
                f"{fact} model.train_generation_kwargs.do_sample is false: set it to true, or leave"
                " target_reward_std out"
            )
        if not isinstance(self.sampler, VllmSamplerConfig):
            return mistakes
        if self.sampler.one_step_behind:
            mistakes.append(
                f"{fact} with sampler.one_step_behind they are not known in time: set it to false,"
                " or leave target_reward_std out"
            )
        if self.env.logprob_temperature is not None:
            mistakes.append(
                f"{fact} env.logprob_temperature is fixed, and the server of `sampler` reports"
                " log-probabilities at the sampling temperature: leave one of them out"
            )
        return mistakes

    def _critic_mistakes(self) -> list[str]:
        name = self.algorithm.name
        value = self.model.value_model
        warmup = self.train.n_critic_warmup_steps
        if self.needs_values and value.ckpt is None and not value.policy_value_sharing:
            return [
                f"model.value_model: `{name}` needs a critic: set model.value_model.ckpt, a model"
                " of its own, or model.value_model.policy_value_sharing=true, a head on the policy"
            ]
        if not self.needs_values and warmup:
            return [
                f"train.n_critic_warmup_steps is {warmup}, but `{name}` has no critic to warm up:"
                " set it to 0, or use an algorithm with a critic:"
                f" {', '.join(algorithms_with_critic())}"
            ]
        return []

    def _monte_carlo_mistakes(self) -> list[str]:
        """Settings under which responses cannot be continued from their segments."""
        if not self.has_monte_carlo_values:
            return []
        way_out = "which algorithm.critic=monte_carlo cannot use: change it, or use critic=scalar"
        mistakes = []
        if not self.model.train_generation_kwargs.do_sample:
            mistakes.append(
                f"model.train_generation_kwargs.do_sample is false, {way_out}: all samples from a"
                " segment on would be the same"
            )
        if not isinstance(self.sampler, LocalSamplerConfig):
            mistakes.append(f"sampler.kind is {self.sampler.kind}, {way_out}")
        if self.algorithm.name == "trpo":
            mistakes.append(f"algorithm.name is trpo, whose update trains a critic, {way_out}")
        return mistakes

    def _conversation_mistakes(self) -> list[str]:
        """Settings with which responses cannot have several turns."""
        if not self.env.has_conversations:
            return []
        way_out = "which conversations (env.of) cannot use yet"
        mistakes = []
        if not isinstance(self.sampler, LocalSamplerConfig):
            mistakes.append(f"sampler.kind is {self.sampler.kind}, {way_out}: set it to local")
        if self.has_monte_carlo_values:
            mistakes.append(f"algorithm.critic is monte_carlo, {way_out}: set it to scalar")
        for key in ("train_generation_kwargs", "eval_generation_kwargs"):
            penalty = getattr(self.model, key).repetition_penalty
            if penalty != 1:
                name = f"model.{key}.repetition_penalty"
                mistakes.append(f"{name} is {penalty:g}, {way_out}: leave it out")
        return mistakes

    def _aspect_mistakes(self) -> list[str]:
        """Names in `gamma` and `gae.lam` of which the critic has no output."""
        aspects = self.critic_aspects
        if aspects is None:
            return []
        mistakes = []
        if KL_ASPECT in self.reward:
            mistakes.append(
                f"reward.{KL_ASPECT}: with algorithm.critic=per_aspect this is the name of the KL"
                " penalty: give the reward another name"
            )
        assert isinstance(self.algorithm, ActorCriticConfig)  # since it has aspects
        for key, numbers in self.algorithm.numbers_by_name().items():
            for name in numbers:
                if name in aspects:
                    continue
                mistakes.append(
                    f"algorithm.{key}.{shorten(name)}: the critic has no such output, only"
                    f" {shorten(', '.join(aspects))}"
                )
        return mistakes

    def unsupported_by_fsdp2(self) -> Mapping[str, bool]:
        critic = self.model.value_model
        algorithm = algorithm_class(self.algorithm)
        reads_whole = bool(own_hooks(algorithm)) and not algorithm.supports_fsdp2
        return {
            **super().unsupported_by_fsdp2(),
            "model.value_model.train_top_layers": bool(critic.train_top_layers),
            f"algorithm.name={self.algorithm.name}": reads_whole,
            "env.of": self.env.has_conversations,
        }

    def _sampler_mistakes(self) -> list[str]:
        """Settings under which a server would not sample from the policy that is trained."""
        if not isinstance(self.sampler, VllmSamplerConfig):
            return []
        generation = self.model.train_generation_kwargs
        way_out = "change it, or set sampler.kind=local"
        mistakes = []
        if not generation.do_sample:
            mistakes.append(
                "model.train_generation_kwargs.do_sample is false, but the server of"
                f" `sampler` samples by probabilities: {way_out}"
            )
        elif self.logprob_temperature != generation.temperature:
            mistakes.append(
                f"env.logprob_temperature is {self.logprob_temperature}, but the server of"
                " `sampler` reports log-probabilities at the sampling temperature"
                f" {generation.temperature}: {way_out}"
            )
        if self.dropout_in_rollouts:
            mistakes.append(
                "train.dropout is true, but the server of `sampler` has no dropout: set"
                " train.dropout=updates, or set sampler.kind=local"
            )
        if "training_policy" in own_hooks(algorithm_class(self.algorithm)):
            mistakes.append(
                f"algorithm.name is {self.algorithm.name}, which samples from a masked policy, but"
                f" the server of `sampler` has the whole one: {way_out}"
            )
        sync_dir = os.path.realpath(self.sampler.sync_dir)
        for path in self._paths_not_to_overwrite():
            if os.path.realpath(path) == sync_dir:
                mistakes.append(
                    f"sampler.sync_dir is {path}, which the run itself needs, and the run would"
                    " overwrite it with its policy: name another folder, and start the server there"
                    " from a copy of the initial policy"
                )
        return mistakes

    def _paths_not_to_overwrite(self) -> list[str]:
        """What the run reads, and where it saves policies."""
        folder = Path(self.logging.save_dir)
        return [*self.inputs, str(folder), str(folder / "best"), str(folder / "final")]

    @property
    def method(self) -> str:
        """How the policy is trained, for its card."""
        return f"RL ({self.algorithm.name})"

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that affect the result, but for the task's code."""
        inputs = [self.model.ckpt]
        if self.needs_values and self.model.value_model.ckpt is not None:
            inputs.append(self.model.value_model.ckpt)
        for reward in self.reward.values():
            if reward.weight:
                inputs += reward.model_folders()
        inputs += models_of(self.evaluation_metrics)
        inputs += [*files_of(self.data.train_file), *files_of(self.data.dev_file)]
        return inputs + self.algorithm.inputs

    @property
    def needs_values(self) -> bool:
        """Whether the run has a critic that learns."""
        has_critic = algorithm_class(self.algorithm).needs_values
        return has_critic and not self.has_monte_carlo_values

    @property
    def has_monte_carlo_values(self) -> bool:
        """Whether values are means over further samples."""
        algorithm = self.algorithm
        return isinstance(algorithm, ActorCriticConfig) and algorithm.critic == "monte_carlo"

    @property
    def critic_aspects(self) -> dict[str, float] | None:
        """The outputs of a critic with one per aspect; None: another critic.

        They are the rewards, and the KL penalty if it is in the reward, with their constant
        weights.
        """
        algorithm = self.algorithm
        if not isinstance(algorithm, ActorCriticConfig) or algorithm.critic != "per_aspect":
            return None
        weights = {name: reward.base_weight for name, reward in self.reward.items()}
        if not algorithm.kl_in_loss:
            weights[KL_ASPECT] = algorithm.kl.coef
        return {name: weight for name, weight in weights.items() if weight != 0}

    def unused_settings(self) -> list[str]:
        """Keys that the config sets but that only other algorithms read."""
        keys = [f"algorithm.{key}" for key in self.algorithm.unused]
        if not self.needs_values:
            given = self.model.value_model.model_dump(exclude_defaults=True)
            keys += [f"model.value_model.{key}" for key in given]
            if self.train.value_lr is not None:
                keys.append("train.value_lr")
        if self.has_monte_carlo_values:
            unread = self.algorithm.model_fields_set & {"gae", "cliprange_value", "vf_coef"}
            keys += [f"algorithm.{key}" for key in unread]
        algorithm = algorithm_class(self.algorithm)(self.algorithm)
        if (
            not algorithm.reuses_rollouts
            and "n_ppo_epoch_per_rollout" in self.train.model_fields_set
        ):
            keys.append("train.n_ppo_epoch_per_rollout")
        return sorted(keys)

    @property
    def train_sampling(self) -> Sampling:
        """How training samples responses."""
        sampling = self.model.train_generation_kwargs.sampling(self.model.max_generated_len)
        return replace(sampling, with_support=self.env.logprob_truncated)

    @property
    def logprob_temperature(self) -> float:
        """The temperature of log-probabilities in ratio and KL."""
        if self.env.logprob_temperature is not None:
            return self.env.logprob_temperature
        generation = self.model.train_generation_kwargs
        return generation.temperature if generation.do_sample else 1.0

    @property
    def dropout_in_rollouts(self) -> bool:
        return self.train.dropout is True  # "updates" is only of those
