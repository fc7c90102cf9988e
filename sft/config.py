"""The config of supervised fine-tuning."""

from typing import Literal

from pydantic import Field, model_validator

from fgrlhf.configs import sections
from fgrlhf.configs.sections import (
    ABOUT_DECODER_PREFIX,
    Decay,
    Epochs,
    LoggingConfig,
    LoRAConfig,
    ParallelConfig,
    is_quantized,
)
from fgrlhf.configs.strict import (
    BatchSize,
    Count,
    FilePath,
    Kernels,
    NonNegativeCount,
    Rate,
    StrictModel,
    Tokens,
    refuse,
)
from fgrlhf.metrics.config import (
    ABOUT_METRICS,
    EvaluationMetrics,
    best_metric_mistakes,
    models_of,
)


class ModelSection(StrictModel):
    """The section `model` of SFT."""

    ckpt: FilePath = Field(
        description="folder or hub name of an encoder-decoder or decoder-only model"
    )
    lora: LoRAConfig | None = Field(
        default=None, description="train adapters, which are merged into the saved model"
    )
    train_top_layers: Count | None = Field(
        default=None, description="train only the top layers; null: all"
    )
    decoder_prefix: str | None = Field(default=None, description=ABOUT_DECODER_PREFIX)
    max_input_len: Tokens = Field(default=1024, description="tokens; longer inputs are cut")
    max_generated_len: Tokens = Field(default=200, description="tokens; longer answers are cut")
    kernels: Kernels = "auto"


class DataSection(StrictModel):
    """The section `data` of SFT."""

    train_file: FilePath = Field(description="demonstrations: a file, or hub:org/name")
    dev_file: FilePath | None = Field(
        default=None, description="null: no evaluation; the last model is saved"
    )
    dev_examples: Count | None = Field(
        default=None, description="use only the first dev rows; null: all"
    )
    turns: Literal["last", "all"] = Field(
        default="last",
        description=(
            "of a training dialog, imitate the assistant's last turn or all of its turns, each of"
            " them as an example"
        ),
    )
    columns: dict[str, str | list[str]] = Field(
        default={},
        description="keys of a demonstration -> keys of the files, e.g. {response: summary}",
    )


class TrainSection(sections.TrainSection):
    """The section `train` of SFT."""

    epochs: Epochs = Field(default=10.0, description="passes over the training rows")
    batch_size: BatchSize = Field(
        default=4, description="examples per optimiser step, over all processes"
    )
    lr: Rate = Field(default=5e-5, description="learning rate")
    lr_schedule: Literal["linear", "cosine", "constant_with_warmup"] = Field(
        default="linear", description="after the warmup"
    )
    warmup_steps: NonNegativeCount = Field(default=0, description="optimiser steps")
    weight_decay: Decay = Field(default=0.0, description="of AdamW")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="of AdamW")
    group_by_length: bool = Field(
        default=False, description="batch answers of similar length, which reduces padding"
    )
    packing: bool = Field(
        default=False,
        description="decoder-only: several examples in one row where that reduces padding",
    )


class EvaluationSection(sections.EvaluationSection):
    """The section `evaluation` of SFT."""

    metric: str = Field(
        default="rougeLsum",
        description=(
            "selects the best checkpoint: `loss`, or any metric of the evaluation or the task; with"
            " `loss` and no other metrics, no answers are generated"
        ),
    )
    batch_size: BatchSize = Field(default=64, description="prompts answered at a time")


class SFTConfig(StrictModel):
    """The config of a whole run."""

    model: ModelSection
    data: DataSection
    train: TrainSection = TrainSection()
    evaluation: EvaluationSection = EvaluationSection()
    evaluation_metrics: EvaluationMetrics = Field(default=[], description=ABOUT_METRICS)
    parallel: ParallelConfig = ParallelConfig()
    logging: LoggingConfig

    @model_validator(mode="after")
    def _micro_batches(self):
        micro = self.train.micro_batch_size
        if micro is not None and self.train.batch_size % micro:
            raise ValueError(
                f"train.batch_size={self.train.batch_size} is not a multiple of"
                f" train.micro_batch_size={micro}; change one of them"
            )
        return self

    @model_validator(mode="after")
    def _parallel_fits(self):
        unsupported = {
            "model.lora.quantize": is_quantized(self.model.lora),
            "model.train_top_layers": self.model.train_top_layers is not None,
            "train.optimizer=adamw_8bit": self.train.optimizer == "adamw_8bit",
        }
        refuse([("", text) for text in self.parallel.mistakes(unsupported)])
        return self

    @model_validator(mode="after")
    def _metric_picks_the_best(self):
        metric = self.evaluation.metric
        if metric != "loss":
            mistakes = best_metric_mistakes(metric, self.evaluation_metrics, "evaluation.metric")
            refuse([("", text) for text in mistakes])
        return self

    @model_validator(mode="after")
    def _metrics_need_dev_data(self):
        if self.evaluation_metrics and self.data.dev_file is None:
            raise ValueError(
                "evaluation_metrics is not read, since data.dev_file is null and nothing is"
                " evaluated: set data.dev_file, or leave evaluation_metrics out"
            )
        return self

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that the stage reads."""
        files = [file for file in (self.data.train_file, self.data.dev_file) if file is not None]
        return [*files, self.model.ckpt, *models_of(self.evaluation_metrics)]
