"""What the seven text tasks of RL4LMs share: docs/text_tasks.md.

A task is a published data set, a function that turns its rows into prompts, and what it reports.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fgrlhf.data.published import Part, PublishedSet
from fgrlhf.report.display import Display
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.task import Task, no_metrics, whole_text
from fgrlhf.text_types import MetricFunction, Prompt

POLICIES = ("sft", "ppo", "nlpo")
# of sets whose test split has no references: dev and test share the validation split
HIDDEN_TEST = {
    "train": Part("train"),
    "dev": Part("validation", 0.0, 0.2),
    "test": Part("validation", 0.2, 1.0),
}
METRIC_NAMES = {
    "bleu/corpus": "BLEU",
    "chrf/corpus": "chrF",
    "distinct1": "distinct-1",
    "distinct2": "distinct-2",
    "meteor": "METEOR",
    "meteor_stem": "METEOR without synonyms",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "ter/corpus": "TER",
}


def nothing(prompt: Prompt) -> str:
    """The part of a prompt that must not be cut, for tasks whose prompts may lose their end."""
    return ""


def text_task(
    name: str,
    published: PublishedSet,
    headline: Sequence[str],
    *,
    core_text: Callable[[Prompt], str] = whole_text,
    rewards: Mapping[str, type[RewardKind]] | None = None,
    metrics: Callable[[Sequence[Prompt]], tuple[MetricFunction, ...]] = no_metrics,
    metric_names: Mapping[str, str] | None = None,
) -> Task:
    """A text task in the folder tasks/NAME.

    Args:
      published: without its fixture, which is data/fixture.jsonl in the folder.
      headline: the metrics by which policies are compared.
      core_text, rewards, metrics: as in `Task`.
      metric_names: display names of metrics besides METRIC_NAMES.
    """
    fixture = Path(__file__).parent / name / "data" / "fixture.jsonl"
    return Task(
        name=name,
        rewards=rewards or {},
        core_text=core_text,
        metrics=metrics,
        published=replace(published, fixture=fixture),
        display=Display(
            names={"sft": "supervised", "ppo": "PPO", "nlpo": "NLPO"},
            metrics={**METRIC_NAMES, **(metric_names or {})},
            headline=headline,
            order=POLICIES,
            colours={policy: number for number, policy in enumerate(POLICIES)},
        ),
    )
