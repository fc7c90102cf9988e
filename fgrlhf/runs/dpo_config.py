"""The config of an offline run on comparisons.

fgrlhf/configs/sections.py has the sections that it shares with RL, SFT and reward models.
"""

from typing import Literal

from pydantic import Field, model_validator

from fgrlhf.configs.sections import (
    PolicyConfig,
    PolicyEvaluationConfig,
    PolicyTrainConfig,
    RunConfig,
)
from fgrlhf.configs.strict import (
    BatchSize,
    FilePath,
    Positive,
    Rate,
    StrictModel,
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


class DPOSettings(StrictModel):
    """The section `dpo`."""

    loss: Literal["sigmoid", "hinge", "ipo"] = Field(
        default="sigmoid", description="of a pair; see docs/algorithms.md"
    )
    beta: Positive = Field(default=0.1, description="strength of the KL constraint")
    span_weight: float = Field(
        default=1.0, ge=1, le=1e6, description="weight of marked tokens; 1: ordinary DPO"
    )


class DPOTrainConfig(PolicyTrainConfig):
    """The section `train` of DPO."""

    epochs: float = Field(default=1.0, ge=1e-4, le=1e6, description="passes over the prompts")
    batch_size: BatchSize = Field(
        default=16, description="prompts per optimiser step, over all processes, with all pairs"
    )
    lr: Rate = Field(default=1e-6, description="learning rate")


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


class DPOConfig(RunConfig):
    """The config of a whole run."""

    model: PolicyConfig
    dpo: DPOSettings = DPOSettings()
    train: DPOTrainConfig = DPOTrainConfig()
    evaluation: PolicyEvaluationConfig = PolicyEvaluationConfig()
    data: DPODataConfig
    evaluation_metrics: EvaluationMetrics = Field(default=[], description=ABOUT_METRICS)

    def mistakes(self) -> list[str]:
        metric = self.evaluation.metric
        return [*super().mistakes(), *best_metric_mistakes(metric, self.evaluation_metrics)]

    @property
    def logprob_temperature(self) -> float:
        """The temperature of log-probabilities in the KL."""
        return 1.0

    @property
    def method(self) -> str:
        """How the policy is trained, for its card."""
        return f"DPO ({self.dpo.loss})"

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that affect the result, but for the task's code."""
        data = self.data
        files = [data.feedback_file, data.train_file, data.dev_file]
        return [
            self.model.ckpt,
            *models_of(self.evaluation_metrics),
            *[file for file in files if file is not None],
        ]
