"""The config of supervised fine-tuning."""

from typing import Literal

from pydantic import Field

from fgrlhf.configs.sections import (
    ABOUT_MIXTURES,
    PolicyConfig,
    RunConfig,
    SupervisedEvaluationConfig,
    SupervisedTrainConfig,
    TrainFile,
    files_of,
)
from fgrlhf.configs.strict import FilePath, Rate, StrictModel
from fgrlhf.metrics.config import (
    ABOUT_METRICS,
    EvaluationMetrics,
    best_metric_mistakes,
    models_of,
)


class SFTDataConfig(StrictModel):
    """The section `data` of SFT."""

    train_file: TrainFile = Field(
        description=f"demonstrations: a file, or hub:org/name. {ABOUT_MIXTURES}"
    )
    dev_file: FilePath | None = Field(
        default=None, description="null: no evaluation; the last model is saved"
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


class SFTTrainConfig(SupervisedTrainConfig):
    """The section `train` of SFT."""

    lr: Rate = Field(default=5e-5, description="learning rate")
    packing: bool = Field(
        default=False,
        description="decoder-only: several examples in one row where that reduces padding",
    )


class SFTEvaluationConfig(SupervisedEvaluationConfig):
    """The section `evaluation` of SFT."""

    metric: str = Field(
        default="rougeLsum",
        description=(
            "selects the best checkpoint: `loss`, or any metric of the evaluation or the task; with"
            " `loss` and no other metrics, no answers are generated"
        ),
    )


class SFTConfig(RunConfig):
    """The config of a whole run."""

    model: PolicyConfig
    data: SFTDataConfig
    train: SFTTrainConfig = SFTTrainConfig()
    evaluation: SFTEvaluationConfig = SFTEvaluationConfig()
    evaluation_metrics: EvaluationMetrics = Field(default=[], description=ABOUT_METRICS)

    def mistakes(self) -> list[str]:
        metric = self.evaluation.metric
        found = super().mistakes()
        if metric != "loss":
            found += best_metric_mistakes(metric, self.evaluation_metrics)
        if self.evaluation_metrics and self.data.dev_file is None:
            found.append(
                "evaluation_metrics is not read, since data.dev_file is null and nothing is"
                " evaluated: set data.dev_file, or leave evaluation_metrics out"
            )
        return found

    @property
    def method(self) -> str:
        """How the policy is trained, for its card."""
        return "SFT"

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that the stage reads."""
        files = [*files_of(self.data.train_file), *files_of(self.data.dev_file)]
        return [*files, self.model.ckpt, *models_of(self.evaluation_metrics)]
