"""Reinforcement learning from fine-grained human feedback.

`__all__` lists the public modules, of which docs/architecture.md explains the parts. Nothing is
imported with the package: the names of `EXPORTS`, as in `fgrlhf.OnPolicyTrainer`, are imported when
they are first used (docs/library.md)."""

import sys
from importlib import import_module

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
    "win_rates",
]

# names of the package -> their modules
EXPORTS = {
    "NO_TASK": "fgrlhf.task",
    "OnPolicyTrainer": "fgrlhf.trainer",
    "Prompt": "fgrlhf.text_types",
    "SegmentScore": "fgrlhf.text_types",
    "Task": "fgrlhf.task",
    "UserError": "fgrlhf.base.errors",
    "build_trainer": "fgrlhf.train_rl",
    "hold": "fgrlhf.runs.stage",
    "load_policy": "fgrlhf.policy",
    "load_reward_model": "fgrlhf.reward_models.loading",
    "load_task": "fgrlhf.load",
    "rl_config": "fgrlhf.task_config",
    "text_prefix": "fgrlhf.reward_models.prefix",
}


def __getattr__(name: str) -> object:
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *EXPORTS])


if sys.argv[0] == "-m":  # `python -m` imports the packages of the program first
    end_at_interrupts()
