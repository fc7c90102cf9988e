"""Local `evaluate` module: how well errors in segments are detected."""

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
Precision, recall and F1 of "has an error" and of "has no error", accuracy, the accuracy of two
trivial baselines (every segment wrong, every segment right), and the area under the ROC curve.
"""

_INPUTS = """
Args:
    predictions: probability of the error for each segment; an error is predicted above 0.5
    references: 1 for a segment with an error, 0 for one without
Returns:
    error_precision, error_recall, error_f1, ok_precision, ok_recall, ok_f1, accuracy,
    all_error_accuracy, all_ok_accuracy, auc. A ratio with denominator 0 is 0; auc is 0.5 if only
    one kind of segment occurs.
"""


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share their mean rank."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts - 1) / 2)[group]


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """P(score of a positive > score of a negative) + P(equal) / 2: the Mann-Whitney statistic."""
    n_positive = int(positive.sum())
    n_negative = int((~positive).sum())
    if not n_positive or not n_negative:
        return 0.5
    u = ranks(scores)[positive].sum() - n_positive * (n_positive + 1) / 2
    return float(u / (n_positive * n_negative))


def precision_recall_f1(predicted: np.ndarray, actual: np.ndarray) -> tuple[float, float, float]:
    """Precision, recall and F1 of boolean predictions; 0 if the denominator is 0."""
    hits = float((predicted & actual).sum())
    precision = hits / max(predicted.sum(), 1)
    recall = hits / max(actual.sum(), 1)
    f1 = 2 * hits / max(predicted.sum() + actual.sum(), 1)
    return float(precision), float(recall), float(f1)


class SpanErrors(evaluate.Metric):
    def _info(self):
        features = datasets.Features(
            {"predictions": datasets.Value("float64"), "references": datasets.Value("int64")}
        )
        return evaluate.MetricInfo(
            description=_DESCRIPTION, citation="", inputs_description=_INPUTS, features=features
        )

    def _compute(self, predictions, references):
        scores = np.asarray(predictions, dtype=float)
        wrong = np.asarray(references).astype(bool)
        predicted = scores > 0.5
        error = precision_recall_f1(predicted, wrong)
        ok = precision_recall_f1(~predicted, ~wrong)
        names = ("precision", "recall", "f1")
        return {
            **{f"error_{name}": value for name, value in zip(names, error)},
            **{f"ok_{name}": value for name, value in zip(names, ok)},
            "accuracy": float((predicted == wrong).mean()),
            "all_error_accuracy": float(wrong.mean()),
            "all_ok_accuracy": float((~wrong).mean()),
            "auc": auc(scores, wrong),
        }
