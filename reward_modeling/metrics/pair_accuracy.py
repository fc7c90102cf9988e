"""Local `evaluate` module: how often the better response of a pair gets the higher score."""

import datasets
import evaluate
import numpy as np

_DESCRIPTION = (
    "Share of pairs whose better response has the higher score; equal scores count one half."
)

_INPUTS = """
Args:
    predictions: score of the first response minus score of the second, for each pair
    references: 1 if the first response is better, 0 if the second is
Returns:
    accuracy; first_accuracy, the accuracy of always choosing the first response; pairs, their
    number
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
        margins = np.asarray(predictions, dtype=float)
        first_better = np.asarray(references).astype(bool)
        correct = np.where(margins == 0, 0.5, (margins > 0) == first_better)
        return {
            "accuracy": float(correct.mean()),
            "first_accuracy": float(first_better.mean()),
            "pairs": len(margins),
        }
