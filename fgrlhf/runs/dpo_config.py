"""The config of an offline run on comparisons.

fgrlhf/configs/sections.py has the sections that it shares with RL, SFT and reward models.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from fgrlhf.configs.sections import (
    ABOUT_MIXTURES,
    PolicyConfig,
    PolicyEvaluationConfig,
    PolicyTrainConfig,
    ReferenceConfig,
    RunConfig,
    TrainFile,
    files_of,
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
from fgrlhf.data.unpaired_rows import UNPAIRED
from fgrlhf.metrics.config import (
    ABOUT_METRICS,
    EvaluationMetrics,
    best_metric_mistakes,
    models_of,
)

ROW_FORMATS = {row_format.name: row_format for row_format in (COMPARISONS, UNPAIRED)}
Loss = Literal[
    "sigmoid",
    "robust",
    "hinge",
    "ipo",
    "ipo_norm",
    "apo_zero",
    "apo_down",
    "simpo",
    "cpo",
    "orpo",
    "kto",
    "kto_spans",
    "unlikelihood",
    "sft",
]
WITHOUT_REFERENCE = ("simpo", "cpo", "orpo", "unlikelihood", "sft")
READ_MARKS = ("kto_spans", "unlikelihood")  # besides `span_weight`
WITHOUT_BETA = ("unlikelihood", "sft")
OF_PAIRS = tuple(
    name for name in get_args(Loss) if name not in ("kto", "kto_spans", "unlikelihood", "sft")
)
# keys that some losses read -> these losses
READ_BY: dict[str, tuple[str, ...]] = {
    "label_smoothing": ("sigmoid", "robust", "simpo", "cpo"),
    "margin": ("simpo",),
    "desirable_weight": ("kto", "kto_spans"),
    "undesirable_weight": ("kto", "kto_spans"),
    "beta": tuple(name for name in get_args(Loss) if name not in WITHOUT_BETA),
}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class DPOSettings(StrictModel):
    """The section `dpo`."""

    loss: Annotated[list[Loss], BeforeValidator(_as_list)] = Field(
        default=["sigmoid"],
        description="of pairs, answers or marks, or several that are added; see docs/algorithms.md",
    )
    loss_weights: list[Positive] | None = Field(
        default=None, description="of each loss in `loss`; null: 1"
    )
    beta: Positive = Field(
        default=0.1, description="strength of the KL constraint; of orpo: of the odds ratio"
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=0.5, description="probability that a judgement is wrong"
    )
    margin: float = Field(
        default=0.5, ge=0, le=1e6, description="of simpo: gamma, which beta times a margin exceeds"
    )
    desirable_weight: Positive = Field(default=1.0, description="of good answers in KTO")
    undesirable_weight: Positive = Field(default=1.0, description="of bad answers in KTO")
    span_weight: float = Field(
        default=1.0, ge=1, le=1e6, description="weight of marked tokens; 1: ordinary DPO"
    )
    unmarked_weight: float = Field(
        default=1.0, ge=0, le=1, description="of the others in answers with marks; 0: masked DPO"
    )
    reference: ReferenceConfig = ReferenceConfig()

    @property
    def losses(self) -> dict[str, float]:
        """The weight of each loss."""
        weights = self.loss_weights or [1.0] * len(self.loss)
        return dict(zip(self.loss, weights, strict=True))

    @property
    def needs_reference(self) -> bool:
        return any(name not in WITHOUT_REFERENCE for name in self.losses)

    @property
    def reads_marks(self) -> bool:
        weighs = self.span_weight != 1 or self.unmarked_weight != 1
        return weighs or any(name in READ_MARKS for name in self.losses)

    @model_validator(mode="after")
    def _keys_fit_the_losses(self):
        names = self.loss
        if not names:
            refuse([("loss", "is empty: name a loss")])
        if len(set(names)) < len(names):
            refuse([("loss", "names a loss twice: give each once, with its weight")])
        if self.loss_weights is not None and len(self.loss_weights) != len(names):
            text = f"{len(self.loss_weights)} weights for {len(names)} losses: give one for each"
            refuse([("loss_weights", text)])
        mistakes: list[tuple[str, str]] = []
        for key, losses in READ_BY.items():
            if not any(name in losses for name in names):
                reason = f"since only the losses {', '.join(losses)} read it: leave it out"
                mistakes += unread_keys(self, [key], reason)
        if not any(name in OF_PAIRS or name == "kto" for name in names):
            reason = "since this dpo.loss weighs no tokens: leave it out"
            mistakes += unread_keys(self, ["span_weight", "unmarked_weight"], reason)
        if not self.needs_reference and self.reference.sync_every is not None:
            mistakes.append(
                ("reference", "is not read, since this dpo.loss has none: leave it out")
            )
        refuse(mistakes)
        return self


class DPOTrainConfig(PolicyTrainConfig):
    """The section `train` of DPO."""

    epochs: float = Field(default=1.0, ge=1e-4, le=1e6, description="passes over the prompts")
    batch_size: BatchSize = Field(
        default=16, description="prompts per optimiser step, over all processes, with all pairs"
    )
    lr: Rate = Field(default=1e-6, description="learning rate")


class DPODataConfig(StrictModel):
    """The section `data` of DPO."""

    feedback_file: TrainFile = Field(
        description=f"judgements of responses, in the format of `pairs`. {ABOUT_MIXTURES}"
    )
    pairs: str = Field(
        default=COMPARISONS.name,
        description="comparisons, unpaired: rows of that format; or a source that the task defines",
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
        if self.pairs in ROW_FORMATS:
            reason = f"since the rows of data.pairs={self.pairs} hold their prompts: leave it out"
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
    def reference(self) -> tuple[str, ReferenceConfig]:
        return "dpo.reference", self.dpo.reference

    @property
    def logprob_temperature(self) -> float:
        """The temperature of log-probabilities in the KL."""
        return 1.0

    @property
    def method(self) -> str:
        """How the policy is trained, for its card."""
        return f"DPO ({' + '.join(self.dpo.losses)})"

    @property
    def inputs(self) -> list[str]:
        """Files and checkpoints that affect the result, but for the task's code."""
        data = self.data
        return [
            self.model.ckpt,
            *models_of(self.evaluation_metrics),
            *files_of(data.feedback_file),
            *files_of(data.train_file),
            *files_of(data.dev_file),
        ]
