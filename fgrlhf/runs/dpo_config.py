"""The config of an offline run on comparisons.

Sections and keys with the same meaning as in an RL run (rl_config.py) have the same names.
"""

from typing import Literal

from pydantic import Field, model_validator

from fgrlhf.configs.sections import (
    ABOUT_CHECKPOINTING,
    ABOUT_DECODER_PREFIX,
    ABOUT_OPTIMIZER,
    EvalGenerationConfig,
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
    Tokens,
    refuse,
    unread_keys,
)
from fgrlhf.data.formats import COMPARISONS
from fgrlhf.metrics.config import (
    ABOUT_METRICS,
    EvaluationMetrics,
    best_metric_mistakes,
    models_of,
)


class DPOPolicyConfig(StrictModel):
    """The policy of DPO, and how evaluations sample from it."""

    ckpt: FilePath = Field(description="initial policy, and the reference")
    input_padding_side: Literal["left", "right"] | None = Field(
        default=None, description="null: left for decoder-only models, right for others"
    )
    decoder_prefix: str | None = Field(default=None, description=ABOUT_DECODER_PREFIX)
    lora: LoRAConfig | None = Field(
        default=None, description="train adapters; the reference is the policy without them"
    )
    train_top_layers: Count | None = Field(
        default=None, description="train only the top layers; null: all"
    )
    eval_generation_kwargs: EvalGenerationConfig = EvalGenerationConfig()


class DPOModelConfig(StrictModel):
    """The section `model` of DPO."""

    policy_model: DPOPolicyConfig
    dtype: Literal["fp32", "bf16"] = Field(
        default="fp32", description="forward passes; weights in training stay fp32"
    )
    kernels: Kernels = "auto"


class DPOEnvConfig(StrictModel):
    """The section `env` of DPO: limits of lengths."""

    max_input_len: Tokens = Field(
        default=1024, description="tokens; longer prompts are cut at their end"
    )
    max_generated_len: Tokens = Field(default=200, description="tokens; longer answers are cut")


class DPOSettings(StrictModel):
    """The section `dpo`: the loss."""

    loss: Literal["sigmoid", "hinge", "ipo"] = Field(
        default="sigmoid", description="of a pair; see docs/algorithms.md"
    )
    beta: Positive = Field(default=0.1, description="strength of the KL constraint")
    span_weight: float = Field(
        default=1.0, ge=1, le=1e6, description="weight of marked tokens; 1: ordinary DPO"
    )


class DPOTrainConfig(StrictModel):
    """The section `train` of DPO."""

    epochs: float = Field(default=1.0, ge=1e-4, le=1e6, description="passes over the prompts")
    batch_size: BatchSize = Field(
        default=16, description="prompts per optimiser step, over all processes, with all pairs"
    )
    micro_batch_size: BatchSize = Field(
        default=4, description="prompts per forward/backward pass and process"
    )
    lr: Rate = Field(default=1e-6, description="learning rate")
    lr_schedule: Literal["linear", "constant"] = Field(
        default="linear", description="after the warmup: decay to 0, or not"
    )
    warmup_steps: NonNegativeCount = Field(default=0, description="optimiser steps")
    optimizer: OptimizerName = Field(default="adamw", description=ABOUT_OPTIMIZER)
    adam_eps: Epsilon = Field(default=1e-8, description="epsilon of Adam")
    clip_grad: bool = Field(default=True, description="clip the norm of the gradient")
    max_grad_norm: Positive = Field(default=1.0, description="bound of the norm")
    dropout: bool = Field(default=False, description="use dropout in training")
    gradient_checkpointing: bool = Field(default=False, description=ABOUT_CHECKPOINTING)
    eval_interval: Count = Field(
        default=50, description="optimiser steps between evaluations on dev"
    )
    eval_examples: Count | None = Field(
        default=None, description="dev prompts used, the first ones; null: all"
    )
    save_interval: Count = Field(default=50, description="optimiser steps between checkpoints")
    best_metric: str = Field(
        default="rougeLsum",
        description="dev metric that picks the best checkpoint, higher is better",
    )
    seed: Seed = Field(default=42, description="of everything random in the run")

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


class DPODataConfig(StrictModel):
    """The section `data` of DPO."""

    feedback_file: FilePath = Field(description="judgements of responses, in the format of `pairs`")
    pairs: str = Field(
        default=COMPARISONS.name,
        description="comparisons: rows of that format; or a source of pairs that the task defines",
    )
    columns: dict[str, str | list[str]] = Field(
        default={}, description="keys of a comparison -> keys of feedback_file"
    )
    train_file: FilePath | None = Field(
        default=None,
        description="the prompts of feedback_file; null: the task generates them",
    )
    dev_file: FilePath | None = Field(
        default=None, description="prompts to evaluate on; null: the task generates them"
    )

    @model_validator(mode="after")
    def _keys_of_the_source(self):
        if self.pairs == COMPARISONS.name:
            reason = "since the rows of data.pairs=comparisons hold their prompts: leave it out"
            refuse(unread_keys(self, ["train_file"], reason))
        else:
            reason = f"since data.pairs={self.pairs} has its own keys: leave it out"
            refuse(unread_keys(self, ["columns"], reason))
        return self


class DPOConfig(StrictModel):
    """The config of a whole run."""

    model: DPOModelConfig
    dpo: DPOSettings = DPOSettings()
    env: DPOEnvConfig = DPOEnvConfig()
    train: DPOTrainConfig = DPOTrainConfig()
    data: DPODataConfig
    parallel: ParallelConfig = ParallelConfig()
    evaluation_metrics: EvaluationMetrics = Field(default=[], description=ABOUT_METRICS)
    logging: LoggingConfig

    @model_validator(mode="after")
    def _sections_fit(self):
        policy = self.model.policy_model
        mistakes = [
            *best_metric_mistakes(self.train.best_metric, self.evaluation_metrics),
            *self.parallel.mistakes(
                {
                    "model.policy_model.lora.quantize": is_quantized(policy.lora),
                    "model.policy_model.train_top_layers": policy.train_top_layers is not None,
                    "train.optimizer=adamw_8bit": self.train.optimizer == "adamw_8bit",
                }
            ),
        ]
        if policy.lora is not None:
            mistakes += policy.lora.mistakes("model.policy_model.lora", self.train.dropout)
        refuse([("", text) for text in mistakes])
        return self

    @property
    def eval_sampling(self) -> Sampling:
        """How evaluations on dev sample responses."""
        generation = self.model.policy_model.eval_generation_kwargs
        return generation.sampling(self.env.max_generated_len)

    @property
    def logprob_temperature(self) -> float:
        """The temperature of log-probabilities in the KL."""
        return 1.0

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that affect the result, but for the task's code."""
        data = self.data
        files = [data.feedback_file, data.train_file, data.dev_file]
        return [
            self.model.policy_model.ckpt,
            *models_of(self.evaluation_metrics),
            *[file for file in files if file is not None],
        ]
