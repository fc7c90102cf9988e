"""Programs that run others as stages: comparisons, sweeps and the experiments of tasks."""

__all__ = [
    "comparison",
    "efficiency",
    "experiments",
    "launchers",
    "scores",
    "stages",
    "study",
]
