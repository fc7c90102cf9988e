"""What an offline run on comparisons is told. Sections and keys that mean the same as in an RL run (rl_config.py) have its names."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from fgrlhf.config import StrictModel
from fgrlhf.rl_config import EvalGenerationConfig, LoggingConfig


class DPOPolicyConfig(StrictModel):
    ckpt: str = Field(description="where the policy starts, and the reference")
    input_padding_side: Literal["left", "right"] | None = None
    eval_generation_kwargs: EvalGenerationConfig = EvalGenerationConfig()


class DPOModelConfig(StrictModel):
    policy_model: DPOPolicyConfig
    dtype: Literal["fp32", "bf16"] = Field("fp32", description="forward passes; weights in training stay fp32")


class DPOEnvConfig(StrictModel):
    max_input_len: PositiveInt = 1024
    max_generated_len: PositiveInt = Field(200, description="tokens; longer answers are cut")


class DPOSettings(StrictModel):
    loss: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    beta: PositiveFloat = 0.1
    span_weight: float = Field(1.0, ge=1, description="of a token in a marked span; 1: ordinary DPO")


class DPOTrainConfig(StrictModel):
    epochs: PositiveFloat = 1.0
    batch_size: PositiveInt = Field(16, description="questions per optimiser step, over all processes; all their pairs")
    training_batch_size_per_card: PositiveInt = Field(4, description="questions per forward/backward pass and process")
    lr: PositiveFloat = 1e-6
    lr_schedule: Literal["linear", "constant"] = "linear"
    n_warmup_steps: NonNegativeInt = 0
    adam_eps: PositiveFloat = 1e-8
    clip_grad: bool = True
    max_grad_norm: PositiveFloat = 1.0
    dropout: bool = False
    gradient_checkpointing: bool = Field(False, description="compute layers twice instead of keeping what they computed: slower, smaller")
    eval_interval: PositiveInt = Field(50, description="optimiser steps between evaluations on dev")
    eval_examples: PositiveInt | None = Field(None, description="dev prompts used, the first ones; null: all")
    save_interval: PositiveInt = Field(50, description="optimiser steps between checkpoints")
    best_metric: str = Field("rougeLsum", description="dev metric that picks the best checkpoint, higher is better")
    seed: int = 42


class DPODataConfig(StrictModel):
    dev_file: str


class DPOConfig(StrictModel):
    """A whole run. A task says in `data` where its comparisons come from."""

    model: DPOModelConfig
    dpo: DPOSettings = DPOSettings()
    env: DPOEnvConfig = DPOEnvConfig()
    train: DPOTrainConfig = DPOTrainConfig()
    data: DPODataConfig
    logging: LoggingConfig
