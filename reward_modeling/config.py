"""The config that the trainers of segment and of pair reward models share."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fgrlhf.configs import sections
from fgrlhf.configs.older_configs import Earlier
from fgrlhf.configs.sections import (
    Decay,
    Epochs,
    LoggingConfig,
    LoRAConfig,
    ParallelConfig,
    Warmup,
    is_quantized,
)
from fgrlhf.configs.strict import (
    BatchSize,
    Count,
    FilePath,
    Kernels,
    Rate,
    StrictModel,
    Tokens,
    refuse,
)
from fgrlhf.reward_models.spec import Shape, with_current_names

TOP_LAYERS_KEY = "model.train_top_layers"


class ModelSection(StrictModel):
    """The section `model` of reward models."""

    ckpt: FilePath = Field(
        description="initial folder or hub name: an encoder, or a policy checkpoint"
    )
    shape: Shape | Literal["auto"] = Field(
        default="auto",
        description=(
            "encoder judges at `</s>` marks; seq2seq and causal judge at segment ends; auto: the"
            " shape of ckpt"
        ),
    )
    max_length: Tokens = Field(default=2048, description="most tokens that the network reads")
    lm_logprob_feature: bool = Field(
        default=False,
        description="read each token's log-probability under a frozen copy of the model",
    )
    text_features: bool = Field(
        default=False,
        description=(
            "start as a linear model of hand-made features of the segments and, with"
            " lm_logprob_feature, of their log-probabilities"
        ),
    )
    layers: Count | None = Field(
        default=None,
        description=(
            "causal: use only the lowest layers of ckpt, this many; middle layers of small models"
            " often judge better than the last ones; null: all"
        ),
    )
    lora: LoRAConfig | None = Field(
        default=None,
        description="train the head and adapters, which are merged into the saved model",
    )
    train_top_layers: Count | None = Field(
        default=None,
        description=(
            "train the head and this many layers, counted from the top; null: all layers and the"
            " embeddings"
        ),
    )
    line_breaks: Annotated[bool | None, Earlier(False)] = Field(
        default=None,
        description=(
            "read prompts and responses with their line breaks and indentation, not as words joined"
            " by spaces; null: if the tokenizer has tokens for them and the files the white space"
        ),
    )
    kernels: Kernels = "auto"


class TrainSection(sections.TrainSection):
    """The section `train` of reward models."""

    epochs: Epochs = Field(default=50.0, description="passes over the training rows")
    batch_size: BatchSize = Field(
        default=24,
        description=(
            "responses (pair files: prompts with all pairs) per optimiser step, over all processes"
        ),
    )
    lr: Rate = Field(default=5e-6, description="learning rate")
    warmup_steps: Warmup = Field(default=0.1, description="below 1: a share of all steps")
    weight_decay: Decay = Field(default=0.01, description="of AdamW")


class EvaluationSection(sections.EvaluationSection):
    """The section `evaluation` of reward models."""

    batch_size: BatchSize = Field(
        default=16, description="responses (pair files: prompts) per forward pass"
    )
    checkpoints: Literal["resume", "best"] = Field(
        default="resume",
        description=(
            "resume: all that an interrupted run needs to continue; best: only the weights of the"
            " best evaluation, a third of the size, so an interrupted run starts again"
        ),
    )


class DataSection(StrictModel):
    """Files of both trainers."""

    train_file: str = Field(description="rows to train on")
    dev_file: str = Field(description="rows that select the best checkpoint")

    @model_validator(mode="before")
    @classmethod
    def _names_of_earlier_releases(cls, tree: Any) -> Any:
        return with_current_names(tree)


class RMConfig(StrictModel):
    """Keys of both trainers' configs."""

    model: ModelSection
    data: DataSection
    train: TrainSection = TrainSection()
    evaluation: EvaluationSection = EvaluationSection()
    parallel: ParallelConfig = ParallelConfig()
    logging: LoggingConfig

    @model_validator(mode="after")
    def _features_need_language_model(self):
        for key in ("lm_logprob_feature", "text_features"):
            if getattr(self.model, key) and self.model.shape == "encoder":
                raise ValueError(
                    f"model.{key}=true needs a language model: set model.shape to seq2seq or"
                    f" causal, or {key}=false"
                )
        return self

    @model_validator(mode="after")
    def _parallel_fits(self):
        unsupported = {
            "model.lora.quantize": is_quantized(self.model.lora),
            TOP_LAYERS_KEY: self.model.train_top_layers is not None,
            "train.optimizer=adamw_8bit": self.train.optimizer == "adamw_8bit",
        }
        refuse([("", text) for text in self.parallel.mistakes(unsupported)])
        return self

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that the stage reads."""
        return [self.data.train_file, self.data.dev_file, self.model.ckpt]
