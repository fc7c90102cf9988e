"""Sections of configs that several stages share, and parts of sections.

A stage derives its own sections where it has other defaults, or keys that only it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fgrlhf.configs.strict import (
    BatchSize,
    Count,
    FilePath,
    Name,
    NonNegativeCount,
    Positive,
    Rate,
    Seed,
    StrictModel,
    Temperature,
    refuse,
    unread_keys,
)

OptimizerName = Literal["adamw", "adamw_8bit"]
ABOUT_OPTIMIZER = (
    "adamw_8bit: two bytes of state per trained weight instead of eight; needs the package"
    " bitsandbytes"
)
ABOUT_DECODER_PREFIX = (
    "tokens, separated by spaces, that the decoder of an encoder-decoder reads before every"
    " response, such as NLLB's target language deu_Latn; null: those saved with the model"
)

ABOUT_CHECKPOINTING = "compute layers twice instead of storing activations: slower, less memory"


# ---- models --------------------------------------------------------------------------------------


class LoRAConfig(StrictModel):
    """The section `lora`: adapters that are trained instead of the weights."""

    r: Count = Field(default=16, description="rank")
    alpha: Positive = Field(
        default=32.0, description="the output of adapters is scaled by alpha / r"
    )
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="on the input of adapters; in RL and DPO it needs train.dropout",
    )
    target_modules: list[str] | None = Field(
        default=None, description="names of linear layers; null: all but the output"
    )
    quantize: Literal["nf4"] | None = Field(
        default=None,
        description=(
            "nf4: store these layers' frozen weights in 4 bits (QLoRA), which needs the package"
            " bitsandbytes; null: no"
        ),
    )

    def mistakes(self, key: str, dropout_is_on: bool) -> list[str]:
        """Mistakes of a config with these settings.

        Args:
          key: where the section is in the config, such as model.policy_model.lora.
          dropout_is_on: `train.dropout`.
        """
        if not self.dropout or dropout_is_on:
            return []
        return [
            f"{key}.dropout is {self.dropout}, but train.dropout is false, which turns all dropout"
            " off: set train.dropout=true, or leave lora.dropout out"
        ]


def is_quantized(lora: LoRAConfig | None) -> bool:
    """Whether the layers under the adapters are stored in fewer bits."""
    return lora is not None and lora.quantize is not None


# ---- sampling ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled.

    Without `do_sample`, the most probable token is taken, or with `num_beams` > 1 the response that
    beam search finds.
    """

    max_new_tokens: int
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0  # 0: the whole vocabulary
    top_p: float | None = None  # None: the whole vocabulary
    num_beams: int = 1

    @property
    def is_truncated(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.do_sample and bool(self.top_k or self.top_p is not None)


class GenerationConfig(StrictModel):
    """How responses are sampled in training."""

    do_sample: bool = Field(default=True, description="false: take the most probable response")
    top_k: NonNegativeCount | None = Field(
        default=None, description="sample from the k most probable tokens; null: from all"
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="sample from the smallest set of tokens with this probability; null: from all",
    )
    temperature: Temperature = Field(default=1.0, description="divides the logits before sampling")
    num_beams: int = Field(
        default=1, ge=1, le=64, description="of beam search; above 1 it needs do_sample=false"
    )

    @model_validator(mode="after")
    def _beams_or_sampling(self):
        if self.do_sample and self.num_beams > 1:
            raise ValueError(
                f"num_beams={self.num_beams} searches for the most probable response, but"
                " do_sample=true samples one: set do_sample=false or num_beams=1"
            )
        if self.do_sample and self.top_k == 1:
            raise ValueError(
                "top_k=1 leaves only the most probable token, so nothing is sampled: set"
                " do_sample=false without top_k, or a larger top_k"
            )
        if not self.do_sample:
            refuse(
                unread_keys(
                    self,
                    ["top_k", "top_p", "temperature"],
                    "since do_sample is false and the most probable response is taken: set"
                    " do_sample=true, or leave it out",
                )
            )
        return self

    def sampling(self, max_new_tokens: int) -> Sampling:
        return Sampling(
            max_new_tokens,
            self.do_sample,
            self.temperature,
            self.top_k or 0,
            self.top_p,
            self.num_beams,
        )


class EvalGenerationConfig(GenerationConfig):
    """How responses are generated in evaluations."""

    do_sample: bool = Field(default=False, description="false: take the most probable response")


# ---- runs ----------------------------------------------------------------------------------------


class LoggingConfig(StrictModel):
    """The section `logging`."""

    run_name: Name = Field(default="run", description="name in logs, progress and trackers")
    save_dir: FilePath = Field(description="folder of the run")
    wandb_log: bool = Field(default=False, description="also log to Weights & Biases")
    wandb_entity: str | None = Field(default=None, description="Weights & Biases: user or team")
    wandb_project: str = Field(default="fgrlhf", description="Weights & Biases: project")
    tensorboard: bool = Field(default=False, description="also write TensorBoard files")
    log_interval: Count = Field(default=1, description="steps between lines of metrics.jsonl")
    n_samples: NonNegativeCount = Field(
        default=16, description="rollouts logged with their token rewards at each evaluation"
    )

    def trackers(self) -> dict[str, Any]:
        """The arguments of `RunLog` for the enabled trackers."""
        wandb = {"project": self.wandb_project, "entity": self.wandb_entity, "name": self.run_name}
        return {"wandb": wandb if self.wandb_log else None, "tensorboard": self.tensorboard}

    def notes(self) -> list[str]:
        """Notes to print at the start: settings of a tracker that is off.

        A single switch turns a tracker off, so its settings are not an error.
        """
        if self.wandb_log:
            return []
        mistakes = unread_keys(
            self, ["wandb_entity", "wandb_project"], "since logging.wandb_log is false"
        )
        return [f"note: logging.{key}: {text}" for key, text in mistakes]


class ParallelConfig(StrictModel):
    """The section `parallel`: how several processes hold the models."""

    strategy: Literal["ddp", "fsdp2"] = Field(
        default="ddp",
        description=(
            "with several processes. ddp: each holds whole models; fsdp2: each stores a part of the"
            " weights, gradients and optimiser state"
        ),
    )

    def mistakes(self, unsupported: Mapping[str, bool]) -> list[str]:
        """Mistakes of a config with settings that fsdp2 does not support.

        Args:
          unsupported: setting -> whether the config has it.
        """
        if self.strategy != "fsdp2":
            return []
        found = []
        for setting, is_set in unsupported.items():
            if is_set:
                found.append(
                    f"parallel.strategy is fsdp2, which does not support {setting} yet: leave it"
                    " out, or set parallel.strategy=ddp"
                )
        return found


# ---- training on labelled rows: SFT and reward models --------------------------------------------

# Types of keys.
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
