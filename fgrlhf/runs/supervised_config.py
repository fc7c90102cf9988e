"""Config sections of the stages that train on labelled rows: SFT and reward models.

A stage derives its own sections, with its defaults and the keys that only it has.
"""

from typing import Annotated

from pydantic import Field

from fgrlhf.configs.strict import BatchSize, Count, Positive, Rate, Seed, StrictModel
from fgrlhf.models.config import ABOUT_CHECKPOINTING
from fgrlhf.runs.optimizer import ABOUT_OPTIMIZER, OptimizerName

# Types of keys; see also fgrlhf/configs/strict.py.
Epochs = Annotated[float, Field(ge=1e-6, le=1e6)]
Decay = Annotated[float, Field(ge=0, le=100)]
Warmup = Annotated[float, Field(ge=0, lt=2**31)]


class TrainSection(StrictModel):
    """The keys of `train` that SFT and reward models share."""

    epochs: Epochs = Field(description="passes over the training rows")
    max_steps: Count | None = Field(
        default=None, description="optimiser steps; null: `epochs` decides"
    )
    batch_size: BatchSize = Field(description="examples per optimiser step, over all processes")
    micro_batch_size: BatchSize | None = Field(
        default=None, description="the same per forward pass and process; null: all of its share"
    )
    lr: Rate = Field(description="learning rate")
    optimizer: OptimizerName = Field(default="adamw", description=ABOUT_OPTIMIZER)
    weight_decay: Decay = Field(description="of AdamW")
    adam_beta2: float = Field(default=0.999, ge=0, lt=1, description="of AdamW")
    max_grad_norm: Positive = Field(default=1.0, description="bound of the norm of the gradient")
    bf16: bool = Field(default=False, description="mixed precision; weights stay fp32")
    gradient_checkpointing: bool = Field(default=False, description=ABOUT_CHECKPOINTING)
    seed: Seed = Field(default=42, description="of everything random in the run")


class EvaluationSection(StrictModel):
    """The section `evaluation` of SFT and reward models."""

    every_steps: Count | None = Field(
        default=None, description="steps between evaluations and checkpoints; null: every epoch"
    )
    batch_size: BatchSize = Field(description="examples per forward pass")
