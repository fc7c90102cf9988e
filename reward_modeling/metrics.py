"""Figures of reward models on dev: errors found in segments, and choices between responses."""

import numpy as np

from fgrlhf.auc import auc

__all__ = ["pair_accuracy", "precision_recall_f1", "span_errors"]


def precision_recall_f1(
    predicted: np.ndarray, actual: np.ndarray
) -> tuple[float | None, float | None, float | None]:
    """Precision, recall and F1 of boolean predictions; None if the denominator is 0."""
    hits = int((predicted & actual).sum())
    found, there = int(predicted.sum()), int(actual.sum())

    def ratio(above: int, below: int) -> float | None:
        return above / below if below else None

    return ratio(hits, found), ratio(hits, there), ratio(2 * hits, found + there)


def span_errors(probabilities: np.ndarray, has_error: np.ndarray) -> dict[str, float]:
    """How well errors in segments are detected. An error is predicted above probability 0.5.

    Args:
      probabilities: of an error, for each segment, of any shape.
      has_error: 1 for a segment with an error, 0 for one without.

    Returns:
      Precision, recall and F1 of "has an error" (`error_f1` ...) and of "has no error"
      (`ok_f1` ...), `accuracy`, the accuracy of two trivial baselines (`all_error_accuracy`: every
      segment wrong, `all_ok_accuracy`: every segment right), and `auc`, the area under the ROC
      curve. What is undefined is left out: a ratio with denominator 0, and the auc if only one kind
      of segment occurs.
    """
    scores = np.asarray(probabilities, dtype=float)
    wrong = np.asarray(has_error).astype(bool)
    predicted = scores > 0.5
    error = precision_recall_f1(predicted, wrong)
    ok = precision_recall_f1(~predicted, ~wrong)
    names = ("precision", "recall", "f1")
    metrics = {
        **{f"error_{name}": value for name, value in zip(names, error)},
        **{f"ok_{name}": value for name, value in zip(names, ok)},
        "accuracy": float((predicted == wrong).mean()),
        "all_error_accuracy": float(wrong.mean()),
        "all_ok_accuracy": float((~wrong).mean()),
        "auc": auc(scores, wrong),
    }
    return {name: value for name, value in metrics.items() if value is not None}


def pair_accuracy(margins: np.ndarray, first_better: np.ndarray) -> dict[str, float]:
    """How often the better response of a pair has the higher score; ties count one half.

    Args:
      margins: score of the first response minus score of the second, for each pair.
      first_better: 1 if the first response is better, 0 if the second is.

    Returns:
      `accuracy`; `first_accuracy`, the accuracy of always choosing the first response; and `pairs`,
      their number.
    """
    margins = np.asarray(margins, dtype=float)
    is_first = np.asarray(first_better).astype(bool)
    correct = np.where(margins == 0, 0.5, (margins > 0) == is_first)
    return {
        "accuracy": float(correct.mean()),
        "first_accuracy": float(is_first.mean()),
        "pairs": len(margins),
    }
