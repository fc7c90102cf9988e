"""The config that the trainers of segment and of pair reward models share."""

from typing import Annotated, Literal

from pydantic import Field

from fgrlhf.configs.sections import (
    ABOUT_MIXTURES,
    Decay,
    Epochs,
    ModelConfig,
    RunConfig,
    SupervisedEvaluationConfig,
    SupervisedTrainConfig,
    TrainFile,
    Warmup,
    files_of,
)
from fgrlhf.configs.strict import BatchSize, Count, Rate, StrictModel, Tokens
from fgrlhf.reward_models.spec import Shape

TOP_LAYERS_KEY = "model.train_top_layers"


class RMModelConfig(ModelConfig):
    """The section `model` of reward models."""

    shape: Shape | Literal["auto"] = Field(
        default="auto",
        description=(
            "encoder judges at `</s>` marks; seq2seq and causal judge at segment ends; auto: the"
            " shape of ckpt"
        ),
    )
    max_input_len: Tokens = Field(
        default=2048, description="most tokens that the network reads, of prompt and response"
    )
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
    members: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1,
        description=(
            "heads on the one network, each trained on another sample of the rows: an ensemble for"
            " `ensemble` of a reward"
        ),
    )
    layers: Count | None = Field(
        default=None,
        description=(
            "causal: use only the lowest layers of ckpt, this many; middle layers of small models"
            " often judge better than the last ones; null: all"
        ),
    )
    line_breaks: bool | None = Field(
        default=None,
        description=(
            "read prompts and responses with their line breaks and indentation, not as words joined"
            " by spaces; null: if the tokenizer has tokens for them and the files the white space"
        ),
    )

    @property
    def of_language_models(self) -> list[str]:
        """The keys that are set and that encoders do not have."""
        given = {"members": self.members > 1}
        given |= {key: getattr(self, key) for key in ("lm_logprob_feature", "text_features")}
        return [key for key, is_set in given.items() if is_set]


class RMTrainConfig(SupervisedTrainConfig):
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


class RMEvaluationConfig(SupervisedEvaluationConfig):
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


class RMDataConfig(StrictModel):
    """Files of both trainers."""

    train_file: TrainFile = Field(description=f"rows to train on. {ABOUT_MIXTURES}")
    dev_file: str = Field(description="rows that select the best checkpoint")


class RMConfig(RunConfig):
    """Keys of both trainers' configs."""

    model: RMModelConfig
    data: RMDataConfig
    train: RMTrainConfig = RMTrainConfig()
    evaluation: RMEvaluationConfig = RMEvaluationConfig()

    def mistakes(self) -> list[str]:
        found = super().mistakes()
        for key in self.model.of_language_models:
            if self.model.shape == "encoder":
                found.append(
                    f"model.{key} needs a language model: set model.shape to seq2seq or causal, or"
                    " leave it out"
                )
        return found

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that the stage reads."""
        return [*files_of(self.data.train_file), self.data.dev_file, self.model.ckpt]
