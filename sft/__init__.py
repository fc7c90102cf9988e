"""Supervised fine-tuning of policies."""

import fgrlhf  # noqa: F401  for Ctrl-C during the imports of `python -m`

__all__ = [
    "config",
    "data",
    "run_sft",
]
