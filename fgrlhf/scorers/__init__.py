"""A number for a text: classifiers, judges, services and classes of users (docs/rewards.md)."""

__all__ = [
    "answer_cache",
    "base",
    "bertscore",
    "classifier",
    "judge",
    "kinds",
    "linear",
    "nli",
    "pairs",
    "service",
]
