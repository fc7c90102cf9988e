"""Calibration of segment reward models: by hand, and on data with a known answer."""

import math

import numpy as np
import pytest

from reward_modeling.calibration import (
    calibrate,
    calibration,
    error_probabilities,
    expected_calibration_error,
    fit_temperature,
    share_threshold,
)


def drawn(n: int, temperature: float, labels: int = 2, seed: int = 0):
    """Logits_NC, and labels_N that are drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits_NC = rng.normal(0, 3, (n, labels))
    scaled_NC = np.exp(logits_NC / temperature)
    below_NC = (scaled_NC / scaled_NC.sum(-1, keepdims=True)).cumsum(-1)
    return logits_NC, (rng.random((n, 1)) > below_NC).sum(-1)


def test_calibration_by_hand():
    bins = calibration(np.array([0.05, 0.12, 0.18, 1.0]), np.array([False, True, False, True]))
    assert bins == [
        {"low": 0.0, "high": 0.1, "count": 1, "predicted": 0.05, "observed": 0.0},
        {"low": 0.1, "high": 0.2, "count": 2, "predicted": pytest.approx(0.15), "observed": 0.5},
        {"low": 0.9, "high": 1.0, "count": 1, "predicted": 1.0, "observed": 1.0},
    ]
    assert expected_calibration_error(bins) == pytest.approx((0.05 + 2 * 0.35 + 0) / 4)


@pytest.mark.parametrize("labels", [2, 4])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_of_the_data_is_found(temperature, labels):
    logits_NC, labels_N = drawn(20_000, temperature, labels)
    found = fit_temperature(logits_NC, labels_N)
    assert found == pytest.approx(temperature, rel=0.1)

    def loss(t):
        z_NC = logits_NC / t
        z_NC = z_NC - np.logaddexp.reduce(z_NC, axis=-1, keepdims=True)
        return -z_NC[np.arange(len(labels_N)), labels_N].mean()

    # no temperature beside it is better
    assert loss(found) < min(loss(found * 0.99), loss(found * 1.01))


def test_data_without_a_mistake_cannot_say_how_sure_a_model_may_be():
    logits_NC = np.array([[2.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(logits_NC, np.array([0, 1])) == 1.0
    assert 0.05 <= fit_temperature(logits_NC, np.array([1, 0])) <= 20  # all are wrong


def test_probability_of_an_error_by_hand():
    logits_NC = np.log([[1.0, 3.0, 4.0], [2.0, 1.0, 1.0]])
    assert error_probabilities(logits_NC).tolist() == pytest.approx([4 / 8, 3 / 4])
    root = [math.sqrt(x) for x in (1, 3, 4)]
    halved = error_probabilities(logits_NC, 2.0)[0]
    assert halved == pytest.approx((root[0] + root[1]) / sum(root))


def test_the_threshold_calls_as_many_wrong_as_are():
    probabilities_N = np.array([0.9, 0.4, 0.35, 0.3, 0.1])
    wrong_N = np.array([True, True, False, True, False])
    threshold = share_threshold(probabilities_N, wrong_N)
    assert threshold == pytest.approx(0.325)
    assert (probabilities_N > threshold).sum() == 3
    assert share_threshold(probabilities_N, np.zeros(5, bool)) == pytest.approx(0.95)
    assert share_threshold(probabilities_N, np.ones(5, bool)) == pytest.approx(0.05)


def test_an_overconfident_model_is_calibrated_on_prompts_that_it_was_not_fitted_on():
    logits_NC, labels_N = drawn(4000, temperature=3.0)
    prompts_N = np.arange(4000) // 5
    found = calibrate(logits_NC, labels_N, prompts_N)
    assert found.temperature == pytest.approx(3, rel=0.1)
    assert found.ece < 0.03 < 0.1 < found.ece_before
    share = (error_probabilities(logits_NC, found.temperature) > found.error_threshold).mean()
    assert share == pytest.approx((labels_N == 0).mean(), abs=1e-3)
    metrics = found.metrics()
    assert metrics["calibration"] == found.curve and "curve" not in metrics
    # each half is read with the other's temperature: labels of a half do not change its own
    other = np.where(np.isin(prompts_N, np.unique(prompts_N)[::2]), 1 - labels_N, labels_N)
    assert calibrate(logits_NC, other, prompts_N).ece > found.ece


def test_one_prompt_is_calibrated_on_itself():
    logits_NC, labels_N = drawn(200, temperature=2.0)
    found = calibrate(logits_NC, labels_N, np.zeros(200, int))
    assert found.ece < found.ece_before
