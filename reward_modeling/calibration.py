"""Calibration of a segment reward model: do its probabilities mean what they say?

Of the segments with p(error) = .3, three in ten should have an error. A temperature T (Guo et al.,
2017) is fitted on dev: p = softmax(z / T) for logits z. It changes no order of the labels, so the
most probable label stays, but `value: expected` pays what the probabilities say.

Axes here: N judged segments, C labels.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

CALIBRATION_BINS = 10
TEMPERATURES = (0.05, 20.0)  # of a fit


def calibration(
    probabilities: np.ndarray, happened: np.ndarray, bins: int = CALIBRATION_BINS
) -> list[dict[str, float]]:
    """Predicted against observed frequency in equal parts of [0, 1]; empty parts are left out."""
    index = np.minimum((probabilities * bins).astype(int), bins - 1)
    curve = []
    for k in range(bins):
        in_bin = index == k
        if not in_bin.any():
            continue
        curve.append(
            {
                "low": k / bins,
                "high": (k + 1) / bins,
                "count": int(in_bin.sum()),
                "predicted": float(probabilities[in_bin].mean()),
                "observed": float(happened[in_bin].mean()),
            }
        )
    return curve


def expected_calibration_error(curve: Sequence[dict[str, float]]) -> float:
    """sum_b n_b / N |predicted_b - observed_b| over the bins b of `calibration`."""
    cases = sum(part["count"] for part in curve)
    gaps = (part["count"] * abs(part["predicted"] - part["observed"]) for part in curve)
    return sum(gaps) / cases


def fit_temperature(logits_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """The T with the least -sum_n log softmax(z_n / T)[y_n], between the bounds of TEMPERATURES.

    The sum is convex in 1 / T. Where every label is right, it falls as T does, without end: then
    the data cannot say how sure the model may be, and T is 1.
    """
    logits_NC = logits_NC.astype(np.float64)
    rows = np.arange(len(labels_N))
    if (logits_NC.argmax(-1) == labels_N).all():
        return 1.0

    def loss(log_temperature: float) -> float:
        scaled_NC = logits_NC * math.exp(-log_temperature)
        return -float(log_softmax(scaled_NC, axis=-1)[rows, labels_N].mean())

    bounds = tuple(math.log(bound) for bound in TEMPERATURES)
    found: Any = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(found.x)


def error_probabilities(logits_NC: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """p(error)_N = 1 - softmax(z / T) of the last label, that of segments without an error."""
    scaled_NC = logits_NC.astype(np.float64) / temperature
    return np.exp(np.logaddexp.reduce(log_softmax(scaled_NC, axis=-1)[:, :-1], axis=-1))


def share_threshold(probabilities_N: np.ndarray, wrong_N: np.ndarray) -> float:
    """The probability above which as many segments have an error as truly do.

    With it, the share of segments that are called free of errors is right on dev. It lies halfway
    between two neighbouring probabilities, and between 0 and 1.
    """
    errors = int(wrong_N.sum())
    highest_first_N = np.sort(probabilities_N)[::-1]
    bounds = np.concatenate([[1.0], highest_first_N, [0.0]])
    return float((bounds[errors] + bounds[errors + 1]) / 2)


@dataclass(frozen=True)
class Calibration:
    """How well the probabilities of a model fit its dev rows.

    Attributes:
      temperature: fitted on all dev rows.
      error_threshold: of the calibrated p(error), see `share_threshold`.
      ece: the expected calibration error with a temperature that was fitted on the other half of
        the prompts.
      ece_before: that of the model's own probabilities.
      curve: the bins of `ece`.
    """

    temperature: float
    error_threshold: float
    ece: float
    ece_before: float
    curve: list[dict[str, float]]

    def metrics(self) -> dict[str, Any]:
        numbers = asdict(self)
        return {"calibration": numbers.pop("curve"), **numbers}


def calibrate(logits_NC: np.ndarray, labels_N: np.ndarray, prompts_N: np.ndarray) -> Calibration:
    """Fit the temperature, and measure what it achieves on prompts that it was not fitted on.

    Args:
      labels_N: the last label is that of segments without an error.
      prompts_N: the number of each segment's prompt.
    """
    wrong_N = labels_N != logits_NC.shape[1] - 1
    temperature = fit_temperature(logits_NC, labels_N)
    in_half_N = np.isin(prompts_N, np.unique(prompts_N)[::2])
    held_out_N = error_probabilities(logits_NC, temperature)  # stays so if there is one prompt
    if not in_half_N.all():
        for half_N in (in_half_N, ~in_half_N):
            of_others = fit_temperature(logits_NC[~half_N], labels_N[~half_N])
            held_out_N[half_N] = error_probabilities(logits_NC[half_N], of_others)
    curve = calibration(held_out_N, wrong_N)
    before = calibration(error_probabilities(logits_NC), wrong_N)
    return Calibration(
        temperature,
        share_threshold(error_probabilities(logits_NC, temperature), wrong_N),
        expected_calibration_error(curve),
        expected_calibration_error(before),
        curve,
    )
