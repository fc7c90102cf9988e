"""Metrics in a config: the key `evaluation_metrics`, and the guard that watches them.

A metric is given by name, or by name and settings.

    evaluation_metrics: [rouge1, bleu, {name: perplexity, model: gpt2}]

`METRICS` lists every metric. docs/metrics.md defines them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from fgrlhf.base.errors import shorten, suggestion
from fgrlhf.configs.strict import (
    Amount,
    FilePath,
    Name,
    NonNegativeCount,
    StrictModel,
    refuse,
    unread_keys,
)
from fgrlhf.reward_utils import (
    MULTILINGUAL,
    SEGMENTER_HELP,
    SegmenterName,
    segmenter_input,
)
from fgrlhf.scorers.kinds import AnyTextScorer

TOKENIZER = frozenset({"tokenizer"})


@dataclass(frozen=True)
class MetricFacts:
    """Properties of a metric that do not depend on its settings.

    Args:
      higher_is_better: None if neither direction is better, or it depends on the settings.
      needs_references: whether the metric is null (not applicable) without references.
      reads: settings that it reads besides its name.
      requires: those of them without a default.
      is_share: whether values are shares, from 0 to 1; None if that depends on the settings.
      tokenizers: values of `tokenizer`, the default first.
    """

    higher_is_better: bool | None
    needs_references: bool = False
    reads: frozenset[str] = frozenset()
    requires: frozenset[str] = frozenset()
    is_share: bool | None = False
    tokenizers: tuple[str, ...] = ()


_OVERLAP = MetricFacts(higher_is_better=True, needs_references=True)
_ROUGE = replace(_OVERLAP, reads=TOKENIZER, tokenizers=("unicode", "published"))
_VARIETY = MetricFacts(higher_is_better=True, is_share=True)

METRICS: dict[str, MetricFacts] = {
    "rouge1": _ROUGE,
    "rouge2": _ROUGE,
    "rougeL": _ROUGE,
    "rougeLsum": _ROUGE,
    "bleu": replace(
        _OVERLAP,
        reads=TOKENIZER,
        tokenizers=("auto", "13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab"),
    ),
    "chrf": _OVERLAP,
    "ter": MetricFacts(
        higher_is_better=False,
        needs_references=True,
        reads=TOKENIZER,
        tokenizers=("auto", "tercom", "asian", "char"),
    ),
    "meteor": _OVERLAP,
    "meteor_stem": _OVERLAP,
    "exact_match": MetricFacts(higher_is_better=True, needs_references=True, is_share=True),
    "distinct1": _VARIETY,
    "distinct2": _VARIETY,
    "distinct3": _VARIETY,
    "repetition": MetricFacts(higher_is_better=False, reads=frozenset({"n", "key"}), is_share=True),
    "copying": MetricFacts(None, reads=frozenset({"n", "key"}), is_share=True),
    "novelty": MetricFacts(
        None, reads=frozenset({"model", "key"}), requires=frozenset({"model"}), is_share=True
    ),
    "msttr": MetricFacts(higher_is_better=True, reads=frozenset({"n", "key"}), is_share=True),
    "cider": replace(
        _OVERLAP,
        reads=frozenset({"references", "key"}),
        requires=frozenset({"references"}),
    ),
    "parent": _OVERLAP,
    "perplexity": MetricFacts(
        higher_is_better=False,
        reads=frozenset({"model", "chat_template", "key"}),
        requires=frozenset({"model"}),
    ),
    "score": MetricFacts(
        higher_is_better=None,
        reads=frozenset({"scorer", "threshold", "better", "key"}),
        requires=frozenset({"scorer"}),
        is_share=None,
    ),
    "length": MetricFacts(higher_is_better=None),
    "sentences": MetricFacts(higher_is_better=None, reads=frozenset({"segmenter"})),
}

# Short forms of `score`, with their scorers: {name: bertscore, model: M, ...} is {name: score,
# key: bertscore, better: high, scorer: {kind: bertscore, ckpt: M, ...}}.
SCORERS: dict[str, dict[str, Any]] = {
    "nli": {"kind": "classifier", "over": "context"},
    "bertscore": {"kind": "bertscore"},
}
OF_SCORE = ("key", "threshold", "better")  # what a short form sets of the metric, not of the scorer

# Columns of every evaluation. rougeLsum needs references, kl a reference policy.
ALWAYS_COMPUTED = ("length", "rougeLsum", "kl", "reward")
# Names that no metric of a task may have.
RESERVED_COLUMNS = frozenset(
    {
        "id",
        "sample",
        "prompt",
        "response",
        "references",
        "segments",
        "cluster",
        "loss",
        *ALWAYS_COMPUTED,
    }
)
_TAKEN = RESERVED_COLUMNS | frozenset(METRICS)


class MetricConfig(StrictModel):
    """One metric. In YAML, its name is enough if it needs no settings."""

    name: str = Field(description=f"one of {', '.join((*METRICS, *SCORERS))}")
    key: Name | None = Field(
        default=None,
        description="column in rows and summaries; null: the name",
    )
    model: FilePath | None = Field(
        default=None,
        description=(
            "perplexity: folder or hub name of a language model; novelty: folder of a reward model"
        ),
    )
    chat_template: bool | None = Field(
        default=None,
        description="perplexity: as of a policy; null: if the tokenizer has a chat template",
    )
    scorer: AnyTextScorer | None = Field(
        default=None, description="score: gives a response a number: docs/rewards.md, Scorers"
    )
    threshold: Amount | None = Field(
        default=None,
        description="score: also report the maximum over samples, and how often it reaches this",
    )
    better: Literal["high", "low"] | None = Field(
        default=None, description="score: which scores are good; null: not known"
    )
    segmenter: SegmenterName = Field(
        default=MULTILINGUAL, description=f"sentences: {SEGMENTER_HELP}"
    )
    n: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description=(
            "repetition, copying: words of an n-gram, null: 4; msttr: words of a segment, null: 50"
        ),
    )
    references: FilePath | None = Field(
        default=None, description="cider: file of prompts, whose references weight the words"
    )
    tokenizer: str | None = Field(
        default=None,
        description="rouge, bleu, ter: what a word is; null: by the script: docs/metrics.md, Words",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        section = {"name": value} if isinstance(value, str) else value
        if isinstance(section, Mapping) and section.get("name") in SCORERS:
            return _score_section(section)
        return section

    @model_validator(mode="after")
    def _settings_are_read(self):
        facts = METRICS.get(self.name)
        if facts is None:
            known = suggestion(self.name, [*METRICS, *SCORERS])
            refuse([("name", f"there is no `{shorten(self.name, 60)}`; {known}")])
            return self
        settings = [key for key in MetricConfig.model_fields if key != "name"]
        unread = [key for key in settings if key not in facts.reads]
        mistakes = unread_keys(self, unread, f"since `{self.name}` does not use it: leave it out")
        for key in sorted(facts.requires):
            if getattr(self, key) is None:
                mistakes.append((key, f"missing; `{self.name}` needs it"))
        if facts.tokenizers and self.tokenizer not in (None, *facts.tokenizers):
            values = ", ".join(facts.tokenizers)
            mistakes.append(("tokenizer", f"of `{self.name}` is one of {values}"))
        if self.key is not None and self.key != self.name and self.key in _TAKEN:
            mistakes.append(("key", f"`{self.key}` is another column's name: choose a new one"))
        refuse(mistakes)
        return self

    @property
    def column(self) -> str:
        """The metric's key in rows and summaries."""
        return self.key or self.name

    @property
    def words(self) -> Any:
        """The tokenizer, by name; only of a metric that has one."""
        return self.tokenizer or METRICS[self.name].tokenizers[0]

    @property
    def higher_is_better(self) -> bool | None:
        """None if neither direction is better, or it is not known."""
        if self.better is not None:
            return self.better == "high"
        return METRICS[self.name].higher_is_better


def _score_section(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section `score` of a short form (`SCORERS`)."""
    name = section["name"]
    of_scorer = {}
    for key, value in section.items():
        if key not in ("name", *OF_SCORE):
            of_scorer["ckpt" if key == "model" else key] = value
    of_metric = {key: section[key] for key in OF_SCORE if key in section}
    scorer = {**SCORERS[name], **of_scorer}
    return {"key": name, "better": "high", **of_metric, "name": "score", "scorer": scorer}


def _different_columns(metrics: list[MetricConfig]) -> list[MetricConfig]:
    columns = [metric.column for metric in metrics]
    for metric in metrics:
        if columns.count(metric.column) > 1:
            way_out = "name it once"
            if "key" in METRICS[metric.name].reads:
                way_out = f"give each its own `key` ({{name: {metric.name}, key: ...}})"
            raise ValueError(f"`{metric.column}` is there more than once: {way_out}")
    return metrics


ABOUT_METRICS = "metrics by name, or as sections with settings: docs/metrics.md"

EvaluationMetrics = Annotated[list[MetricConfig], AfterValidator(_different_columns)]


def is_higher_better(metric: str, metrics: Sequence[MetricConfig] = ()) -> bool | None:
    """Whether higher values of a key of a summary are better; None if that is not known.

    Args:
      metric: such as "reward", "bleu" or "bleu/corpus".
      metrics: the `evaluation_metrics` of the config, which may give a metric another key.
    """
    column = metric.partition("/")[0]
    for config in metrics:
        if config.column == column:
            return config.higher_is_better
    if column == "reward":
        return True
    return METRICS[column].higher_is_better if column in METRICS else None


def models_of(metrics: Sequence[MetricConfig]) -> list[str]:
    """What the metrics load, the inputs of a stage: models, files of references and segmenters."""
    models = []
    for metric in metrics:
        if metric.model is not None:
            models.append(metric.model)
        if metric.scorer is not None:
            models += metric.scorer.model_folders()
        if metric.references is not None:
            models.append(metric.references)
        if metric.name == "sentences":
            models.append(segmenter_input(metric.segmenter))
    return models


def unwatchable(metric: str, bound: float | None, metrics: Sequence[MetricConfig]) -> str:
    """Why a guard cannot watch a metric; "" if it can, as far as the config tells.

    Args:
      bound: None: the metric must not get worse.
      metrics: the `evaluation_metrics` of the same config.
    """
    column = metric.partition("/")[0]
    by_column = {config.column for config in metrics}
    if column in METRICS and column not in by_column and column not in ALWAYS_COMPUTED:
        return f"which is not computed: add {column} to evaluation_metrics"
    if bound is not None:
        return ""
    if metric == "reward":
        return "which is what the policy is trained on: name what tells whether it is right"
    is_known = column in by_column or column in METRICS or column == "kl"
    if is_known and is_higher_better(metric, metrics) is None:
        highest = 0.5 if column in METRICS and METRICS[column].is_share else 5
        way_out = f"give it a bound, such as `{metric} <= {highest}`"
        if any(config.column == column and config.name == "score" for config in metrics):
            way_out += ", or set `better` of the metric"
        return f"of which neither direction is known to be better: {way_out}"
    return ""


_MONITOR = re.compile(r"(?P<metric>[^\s<>=]+)\s*(?:(?P<sign>[<>]=)\s*(?P<bound>\S+))?")


@dataclass(frozen=True)
class Monitor:
    """What the guard watches: a metric that must not fall while the reward rises, or its bound.

    Args:
      metric: of dev, or of a training step.
      bound: None: it must not fall.
      is_lower: whether the bound is the lowest value, rather than the highest.
    """

    metric: str
    bound: float | None = None
    is_lower: bool = True

    @classmethod
    def parse(cls, text: str) -> "Monitor":
        """Read `metric`, `metric >= number` or `metric <= number`.

        Raises:
          ValueError: the text is none of them.
        """
        match = _MONITOR.fullmatch(text.strip())
        bound = match and match["bound"]
        if match is None or (bound and not _is_finite(bound)):
            raise ValueError(
                f"`{shorten(text, 60)}` is neither the name of a metric nor a bound such as"
                " `length >= 40` or `kl <= 5`"
            )
        return cls(match["metric"], float(bound) if bound else None, match["sign"] != "<=")

    def __str__(self) -> str:
        if self.bound is None:
            return self.metric
        return f"{self.metric} {'>=' if self.is_lower else '<='} {self.bound:g}"


def _is_finite(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class GuardConfig(StrictModel):
    """The section `train.guard`: what to do when the policy exploits its reward."""

    on: Annotated[list[str], Field(min_length=1)] = Field(
        description=(
            "dev metrics that must not fall while the reward rises, and bounds such as"
            " `length >= 40` or `kl <= 5`"
        )
    )
    restore: Literal["best"] | None = Field(
        default="best", description="on an alarm, go on from the best policy; null: from this one"
    )
    lr: float = Field(
        default=0.5, gt=0, le=1, description="on an alarm, both learning rates are multiplied by it"
    )
    kl_coef: float = Field(
        default=2.0, ge=1, le=1e6, description="on an alarm, algorithm.kl.coef is multiplied by it"
    )
    tries: NonNegativeCount = Field(default=3, description="alarms after which the run goes on")

    @model_validator(mode="after")
    def _monitors_can_be_read(self):
        mistakes = []
        for i, text in enumerate(self.on):
            try:
                Monitor.parse(text)
            except ValueError as error:
                mistakes.append((f"on[{i}]", str(error)))
        refuse(mistakes)
        return self

    @property
    def monitors(self) -> list[Monitor]:
        """What is watched, each once."""
        return list(dict.fromkeys(Monitor.parse(text) for text in self.on))


def best_metric_mistakes(best_metric: str, metrics: Sequence[MetricConfig]) -> list[str]:
    """Problems with a metric whose highest value selects the best policy.

    The metric must be computed, and lower values must not be better. For a `score`, the config must
    say that higher ones are.

    Args:
      best_metric: a key of the summary, e.g. "reward", "bleu" or "bleu/corpus".
      metrics: the `evaluation_metrics` of the same config.
    """
    column = best_metric.partition("/")[0]
    by_column = {metric.column: metric for metric in metrics}
    if column in METRICS and column not in by_column and column not in ALWAYS_COMPUTED:
        return [
            f"evaluation.metric is `{best_metric}`, which is not computed: add {column} to"
            " evaluation_metrics, or choose another metric"
        ]
    if column == "kl" and column not in by_column:
        return [
            f"evaluation.metric is `{best_metric}`, but the policy with the highest value is kept"
            " as the best one, which would be the one farthest from the reference: choose another"
            " metric"
        ]
    metric = by_column.get(column)
    if metric is None:
        return []
    if metric.higher_is_better is False:
        return [
            f"evaluation.metric is `{best_metric}`, but the policy with the highest value is kept"
            f" as the best one, and a lower {metric.name} is better: choose another metric"
        ]
    if metric.name == "score" and metric.better is None:
        return [
            f"evaluation.metric is `{best_metric}`, and whether higher scores are better is"
            f" not known: add better: high to the metric `{column}`, or choose another metric"
        ]
    return []
