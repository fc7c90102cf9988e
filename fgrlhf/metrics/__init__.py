"""Metrics of responses: a scorer or a count with a name (docs/metrics.md)."""

__all__ = [
    "base",
    "cider",
    "config",
    "registry",
    "rows",
    "score",
]
