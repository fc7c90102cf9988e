import fgrlhf  # noqa: F401  for Ctrl-C during the imports of `python -m`
