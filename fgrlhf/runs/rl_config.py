"""The config of an RL run: the sections of its YAML file. The published files load unchanged.

A key that the chosen mode does not read is an error if its value is not the default. Two kinds of
unread keys only cause a note at the start, because a single setting enables them: settings of other
algorithms (`RLConfig.unused_settings`), and those of a disabled tracker (`LoggingConfig.notes`).
"""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fgrlhf.algorithms.config import PPOConfig, RunSettings
from fgrlhf.algorithms.registry import (
    AnyAlgorithm,
    algorithm_class,
    algorithms_with_critic,
    own_hooks,
    read_with_ppo_section,
)
from fgrlhf.configs.sections import (
    ABOUT_CHECKPOINTING,
    ABOUT_DECODER_PREFIX,
    ABOUT_OPTIMIZER,
    EvalGenerationConfig,
    GenerationConfig,
    LoggingConfig,
    LoRAConfig,
    OptimizerName,
    ParallelConfig,
    Sampling,
    is_quantized,
)
from fgrlhf.configs.strict import (
    BatchSize,
    Count,
    Epsilon,
    FilePath,
    Kernels,
    NonNegativeCount,
    Positive,
    Rate,
    Seed,
    StrictModel,
    Temperature,
    Tokens,
    refuse,
    unread_keys,
)
from fgrlhf.metrics.config import (
    ABOUT_METRICS,
    EvaluationMetrics,
    best_metric_mistakes,
    models_of,
)
from fgrlhf.metrics.pooled import NOT_REWARDS
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.samplers.config import AnySampler, LocalSamplerConfig, VllmSamplerConfig

ABOUT_TOP_LAYERS = (
    "train only the top layers; those below are frozen and computed once per rollout. null: all"
)


class PolicyConfig(StrictModel):
    """The section `model.policy_model`."""

    ckpt: FilePath = Field(description="folder or hub name")
    input_padding_side: Literal["left", "right"] | None = Field(
        default=None, description="null: left for decoder-only models, right for others"
    )
    chat_template: bool | None = Field(
        default=None,
        description="prompts as a user's turn; null: if the tokenizer has a chat template",
    )
    decoder_prefix: str | None = Field(default=None, description=ABOUT_DECODER_PREFIX)
    lora: LoRAConfig | None = Field(
        default=None, description="train adapters; the reference is the policy without them"
    )
    train_top_layers: Count | None = Field(default=None, description=ABOUT_TOP_LAYERS)
    train_generation_kwargs: GenerationConfig = GenerationConfig()
    eval_generation_kwargs: EvalGenerationConfig = EvalGenerationConfig()


class ValueConfig(StrictModel):
    """The section `model.value_model`: the critic."""

    ckpt: FilePath | None = Field(default=None, description="folder or hub name")
    freeze_value_model: bool = Field(default=False, description="train only the critic's head")
    policy_value_sharing: bool = Field(
        default=False, description="the critic is a head on the policy's hidden states"
    )
    train_top_layers: Count | None = Field(
        default=None,
        description=(
            "train only the top layers of the critic's trunk. If ckpt and this number are the"
            " policy's, both share the frozen layers"
        ),
    )

    @model_validator(mode="after")
    def _one_trunk(self):
        if not self.policy_value_sharing:
            return self
        mistakes = unread_keys(
            self,
            ["ckpt", "train_top_layers"],
            "since policy_value_sharing is true and the critic reads the policy's hidden states: "
            "leave it out, or set policy_value_sharing=false",
        )
        if self.freeze_value_model:
            text = (
                "the critic shares the policy's trunk, which cannot be frozen: set"
                " freeze_value_model=false, or policy_value_sharing=false"
            )
            mistakes.append(("freeze_value_model", text))
        refuse(mistakes)
        return self


class ModelConfig(StrictModel):
    """The section `model` of RL."""

    policy_model: PolicyConfig
    value_model: ValueConfig = Field(
        default=ValueConfig(), description="the critic; algorithms without one do not need it"
    )
    dtype: Literal["fp32", "bf16"] = Field(
        default="fp32", description="forward passes; weights in training stay fp32"
    )
    kernels: Kernels = "auto"


class EnvConfig(StrictModel):
    """The section `env`: prompts, lengths, and responses per prompt."""

    max_input_len: Tokens = Field(
        default=1024, description="tokens; longer prompts are cut at their end"
    )
    max_generated_len: Tokens = Field(
        default=200, description="tokens of a response, including its end token"
    )
    train_num_samples_per_input: BatchSize = Field(
        default=4, description="responses per prompt in a rollout"
    )
    logprob_temperature: Temperature | None = Field(
        default=None, description="temperature of ratio and KL; null: the sampling temperature"
    )


class TrainConfig(StrictModel):
    """The section `train` of RL."""

    total_episodes: Count = Field(default=80_000, description="responses sampled in the whole run")
    eval_interval: Count = Field(default=50, description="rollout steps between evaluations on dev")
    eval_examples: Count | None = Field(
        default=None, description="dev prompts used, the first ones; null: all"
    )
    save_interval: Count = Field(default=50, description="rollout steps between checkpoints")
    best_metric: str = Field(
        default="reward", description="dev metric that picks the best checkpoint, higher is better"
    )
    sampling_batch_size_per_card: BatchSize = Field(
        default=8, description="prompts per rollout and process"
    )
    micro_batch_size: BatchSize = Field(
        default=4, description="rollouts per forward/backward pass and process"
    )
    n_minibatches: BatchSize = Field(default=1, description="optimiser steps per PPO epoch")
    n_ppo_epoch_per_rollout: Count = Field(
        default=4, description="for ppo, grpo, nlpo and trpo's critic; the others take one epoch"
    )
    lr: Rate = Field(default=1e-5, description="learning rate of the policy")
    value_lr: Rate | None = Field(default=None, description="null: lr")
    lr_schedule: Literal["linear", "constant"] = Field(
        default="linear", description="after the warmup: decay to 0, or not"
    )
    warmup_steps: NonNegativeCount = Field(default=100, description="rollout steps")
    n_critic_warmup_steps: NonNegativeCount = Field(
        default=0, description="first rollout steps in which only the critic learns"
    )
    optimizer: OptimizerName = Field(default="adamw", description=ABOUT_OPTIMIZER)
    adam_eps: Epsilon = Field(default=1e-5, description="epsilon of Adam")
    kl_threshold: Positive = Field(
        default=10.0,
        description=(
            "stop after the batch KL has exceeded it kl_patience times; a policy whose dev KL"
            " exceeds it is never the best one"
        ),
    )
    kl_patience: Count = Field(default=5, description="see kl_threshold")
    clip_grad: bool = Field(default=True, description="clip the norm of the gradient")
    max_grad_norm: Positive = Field(default=0.5, description="bound of the norm")
    dropout: bool = Field(default=False, description="use dropout in rollouts and updates")
    dropout_in_rollouts: bool | None = Field(
        default=None, description="null: as `dropout`; false with dropout=true is as published (D4)"
    )
    gradient_checkpointing: bool = Field(default=False, description=ABOUT_CHECKPOINTING)
    shuffle: bool = Field(default=True, description="false: as published (D6)")
    average_microbatches: bool = Field(
        default=True, description="false: sum the losses of micro-batches, as published (D6)"
    )
    seed: Seed = Field(default=42, description="of everything random in the run")
    cuda_deterministic: bool = Field(
        default=True,
        description=(
            "use cuDNN's deterministic kernels; transformer layers use others, so GPU runs may"
            " differ by rounding"
        ),
    )

    @model_validator(mode="after")
    def _clipping_is_on(self):
        if not self.clip_grad:
            refuse(
                unread_keys(
                    self,
                    ["max_grad_norm"],
                    "since clip_grad is false: set clip_grad=true, or leave it out",
                )
            )
        return self


class DataConfig(StrictModel):
    """The section `data` of RL."""

    train_file: FilePath | None = Field(
        default=None, description="prompts to train on; null: the task generates them"
    )
    dev_file: FilePath | None = Field(
        default=None, description="prompts to evaluate on; null: the task generates them"
    )
    seed: Seed = Field(default=0, description="of generated prompts: their order, or a sample")


class RLConfig(StrictModel):
    """The config of a whole run. `fgrlhf.task_config.rl_config` adds a task's reward kinds."""

    model: ModelConfig
    reward: dict[str, RewardKind]
    env: EnvConfig = EnvConfig()
    algorithm: AnyAlgorithm = PPOConfig()
    train: TrainConfig = TrainConfig()
    data: DataConfig = DataConfig()
    parallel: ParallelConfig = ParallelConfig()
    sampler: AnySampler = LocalSamplerConfig()
    evaluation_metrics: EvaluationMetrics = Field(default=[], description=ABOUT_METRICS)
    logging: LoggingConfig

    @model_validator(mode="wrap")
    @classmethod
    def _published_ppo_section(cls, tree: Any, handler):
        """Accept the settings of `algorithm` under `ppo`, as in the published files."""
        if isinstance(tree, dict) and "ppo" in tree:
            return read_with_ppo_section(tree, handler)
        return handler(tree)

    @model_validator(mode="after")
    def _sections_fit(self):
        mistakes = [
            *self._reward_mistakes(),
            *self._model_mistakes(),
            *self._sampling_mistakes(),
            *self._critic_mistakes(),
            *self.algorithm.mistakes(self._settings_for_the_algorithm()),
            *self._parallel_mistakes(),
            *self._sampler_mistakes(),
            *best_metric_mistakes(self.train.best_metric, self.evaluation_metrics),
        ]
        refuse([("", text) for text in mistakes])
        return self

    def _settings_for_the_algorithm(self) -> RunSettings:
        generation = self.model.policy_model.train_generation_kwargs
        return RunSettings(
            samples_per_prompt=self.env.train_num_samples_per_input,
            do_sample=generation.do_sample,
            num_beams=generation.num_beams,
            shares_trunk=self.model.value_model.policy_value_sharing,
            dropout=self.train.dropout,
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

    def _model_mistakes(self) -> list[str]:
        lora = self.model.policy_model.lora
        if lora is None:
            return []
        return lora.mistakes("model.policy_model.lora", self.train.dropout)

    def _sampling_mistakes(self) -> list[str]:
        beams = self.model.policy_model.train_generation_kwargs.num_beams
        K = self.env.train_num_samples_per_input
        if beams == 1 or K == 1:
            return []
        return [
            f"model.policy_model.train_generation_kwargs.num_beams is {beams}, but beam search"
            f" finds one response per prompt, and env.train_num_samples_per_input is {K}: set"
            " num_beams=1 and do_sample=true, or set env.train_num_samples_per_input=1"
        ]

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

    def _parallel_mistakes(self) -> list[str]:
        policy = self.model.policy_model
        critic = self.model.value_model
        algorithm = f"algorithm.name={self.algorithm.name}"
        return self.parallel.mistakes(
            {
                "model.policy_model.lora.quantize": is_quantized(policy.lora),
                "train.optimizer=adamw_8bit": self.train.optimizer == "adamw_8bit",
                "model.policy_model.train_top_layers": policy.train_top_layers is not None,
                "model.value_model.train_top_layers": critic.train_top_layers is not None,
                algorithm: bool(own_hooks(algorithm_class(self.algorithm))),
            }
        )

    def _sampler_mistakes(self) -> list[str]:
        """Settings under which a server would not sample from the policy that is trained."""
        if not isinstance(self.sampler, VllmSamplerConfig):
            return []
        generation = self.model.policy_model.train_generation_kwargs
        way_out = "change it, or set sampler.kind=local"
        mistakes = []
        if not generation.do_sample:
            mistakes.append(
                "model.policy_model.train_generation_kwargs.do_sample is false, but the server of"
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
                " train.dropout_in_rollouts=false, or set sampler.kind=local"
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
    def inputs(self) -> list[str]:
        """Files and checkpoints that affect the result, but for the task's code."""
        inputs = [self.model.policy_model.ckpt]
        if self.needs_values and self.model.value_model.ckpt is not None:
            inputs.append(self.model.value_model.ckpt)
        for reward in self.reward.values():
            if reward.weight:
                inputs += reward.model_folders()
        inputs += models_of(self.evaluation_metrics)
        inputs += [file for file in (self.data.train_file, self.data.dev_file) if file is not None]
        return inputs

    @property
    def needs_values(self) -> bool:
        """Whether the algorithm has a critic."""
        return algorithm_class(self.algorithm).needs_values

    def unused_settings(self) -> list[str]:
        """Keys that the config sets but that only other algorithms read."""
        keys = [f"algorithm.{key}" for key in self.algorithm.unused]
        if not self.needs_values:
            value = self.model.value_model
            given = [key for key in value.model_fields_set if getattr(value, key)]
            keys += [f"model.value_model.{key}" for key in given]
            if self.train.value_lr is not None:
                keys.append("train.value_lr")
        reuses_rollouts = algorithm_class(self.algorithm).reuses_rollouts
        if not reuses_rollouts and "n_ppo_epoch_per_rollout" in self.train.model_fields_set:
            keys.append("train.n_ppo_epoch_per_rollout")
        return sorted(keys)

    @property
    def eval_sampling(self) -> Sampling:
        """How evaluations on dev sample responses."""
        generation = self.model.policy_model.eval_generation_kwargs
        return generation.sampling(self.env.max_generated_len)

    @property
    def train_sampling(self) -> Sampling:
        """How training samples responses."""
        generation = self.model.policy_model.train_generation_kwargs
        return generation.sampling(self.env.max_generated_len)

    @property
    def logprob_temperature(self) -> float:
        """The temperature of log-probabilities in ratio and KL."""
        if self.env.logprob_temperature is not None:
            return self.env.logprob_temperature
        generation = self.model.policy_model.train_generation_kwargs
        return generation.temperature if generation.do_sample else 1.0

    @property
    def dropout_in_rollouts(self) -> bool:
        setting = self.train.dropout_in_rollouts
        return self.train.dropout if setting is None else setting
