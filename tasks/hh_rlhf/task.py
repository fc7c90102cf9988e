"""Preferences about answers in dialogs: HH-RLHF, or other rows of comparisons."""

from collections.abc import Sequence

from fgrlhf.report.display import Display
from fgrlhf.task import Task
from fgrlhf.text_types import MetricFunction, Prompt
from tasks.hh_rlhf.data.mini_world import read_talk, true_quality


def metrics(prompts: Sequence[Prompt]) -> tuple[MetricFunction, ...]:
    """The truth for dialogs of the mini world; no metric for others, which it cannot judge."""
    known = all(read_talk(prompt.messages) is not None for prompt in prompts[:5])
    return (true_quality,) if known and prompts else ()


TASK = Task(
    name="hh_rlhf",
    metrics=metrics,
    display=Display(
        names={"sft": "SFT", "ppo": "PPO", "grpo": "GRPO", "dpo": "DPO"},
        metrics={
            "oracle/quality": "true quality",
            "oracle/helpful": "of answers to harmless requests",
            "oracle/harmless": "of answers to harmful requests",
            "length": "length in words",
        },
        headline=("reward", "length", "kl"),
        order=("sft", "ppo", "grpo", "dpo"),
        colours={"sft": 0, "ppo": 1, "grpo": 2, "dpo": 3},
    ),
)
