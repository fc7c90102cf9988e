"""Local `evaluate` module: how often the better one of two answers gets the higher score."""

import datasets
import evaluate
import numpy as np

_DESCRIPTION = (
    "Share of decided pairs whose better answer has the higher score; equal scores count one half."
)

_INPUTS = """
Args:
    predictions: score of the first answer less score of the second, for each decided pair
    references: 1 where the first answer is better, 0 where the second is
Returns:
    accuracy; first_accuracy, that of always choosing the first answer of a pair; pairs, their number
"""


class PairAccuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features(
            {"predictions": datasets.Value("float64"), "references": datasets.Value("int64")}
        )
        return evaluate.MetricInfo(
            description=_DESCRIPTION, citation="", inputs_description=_INPUTS, features=features
        )

    def _compute(self, predictions, references):
        margins, first = np.asarray(predictions, dtype=float), np.asarray(references).astype(bool)
        right = np.where(margins == 0, 0.5, (margins > 0) == first)
        return {
            "accuracy": float(right.mean()),
            "first_accuracy": float(first.mean()),
            "pairs": len(margins),
        }
