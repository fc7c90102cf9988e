"""Reinforcement learning from fine-grained human feedback.

`__all__` lists the public modules, of which docs/architecture.md explains the parts. Nothing is
imported with the package."""

import sys

from fgrlhf.base.interrupts import end_at_interrupts

__all__ = [
    "algorithms",
    "alignment",
    "base",
    "base_trainer",
    "cli",
    "configs",
    "data",
    "dpo",
    "evaluation",
    "evaluators",
    "load",
    "metrics",
    "models",
    "pipeline",
    "policy",
    "policy_trainer",
    "ppo",
    "reward",
    "reward_models",
    "reward_utils",
    "rewards",
    "rollout",
    "runs",
    "samplers",
    "scorers",
    "segmentation",
    "seed_stats",
    "stats",
    "supervised_trainer",
    "task",
    "task_config",
    "text_types",
    "trainer",
    "types",
    "utils",
    "value",
]

if sys.argv[0] == "-m":  # `python -m` imports the packages of the program first
    end_at_interrupts()
