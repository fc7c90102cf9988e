"""Local `evaluate` module: how well errors in segments are detected."""

import datasets
import evaluate
import numpy as np

from fgrlhf.auc import auc

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
    all_error_accuracy, all_ok_accuracy, auc. What is undefined is left out: a ratio with
    denominator 0, and the auc if only one kind of segment occurs.
"""


def precision_recall_f1(
    predicted: np.ndarray, actual: np.ndarray
) -> tuple[float | None, float | None, float | None]:
    """Precision, recall and F1 of boolean predictions; None if the denominator is 0."""
    hits = int((predicted & actual).sum())
    found, there = int(predicted.sum()), int(actual.sum())

    def ratio(above: int, below: int) -> float | None:
        return above / below if below else None

    return ratio(hits, found), ratio(hits, there), ratio(2 * hits, found + there)


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
        metrics = {
            **{f"error_{name}": value for name, value in zip(names, error)},
            **{f"ok_{name}": value for name, value in zip(names, ok)},
            "accuracy": float((predicted == wrong).mean()),
            "all_error_accuracy": float(wrong.mean()),
            "all_ok_accuracy": float((~wrong).mean()),
            "auc": auc(scores, wrong),
        }
        return {name: value for name, value in metrics.items() if value is not None}
