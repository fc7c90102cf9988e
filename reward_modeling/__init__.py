"""Training of reward models, and the files that they are trained on."""

import fgrlhf  # noqa: F401  for Ctrl-C during the imports of `python -m`

__all__ = [
    "config",
    "data",
    "run_fg_rm",
    "run_pref_rm",
    "segment_files",
    "span_files",
    "step_files",
    "training",
]
