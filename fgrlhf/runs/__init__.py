"""What a run keeps and reads: its config, checkpoints, logs and records of stages."""

__all__ = [
    "checkpoint",
    "dpo_config",
    "rl_config",
    "runlog",
    "stage",
]
