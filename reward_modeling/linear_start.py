"""Starts a reward model as the logistic regression of its hand-made features (`text_features`).

See fgrlhf/reward_models/feature_head.py. The regression is that of the baselines: standardised
features and scikit-learn's default penalty. It is deterministic and takes less than a second.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from fgrlhf.reward_models.feature_head import LinearModel
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.reward_models.rm_input import RMInput
from fgrlhf.utils import IGNORED
from reward_modeling.data import Pair
from reward_modeling.precompute import batch_on_device

MOST_STEPS = 2_000  # of the optimiser, which stops when it has converged
BATCH = 64  # inputs


def linear_inputs(
    network: LanguageModelScorer, inputs: RMInputs, rm_inputs: Sequence[RMInput]
) -> list[Tensor]:
    """x_SF of each input's judged segments.

    A language model's features are computed if the inputs lack them.
    """
    results = []
    for begin in range(0, len(rm_inputs), BATCH):
        part = rm_inputs[begin : begin + BATCH]
        batch = inputs.collate(part)
        features_BTF = batch.get("features")
        if features_BTF is None and network.feature_in is not None:
            on_device = batch_on_device(inputs, part, network.head.weight.device)
            features_BTF = network.features(on_device).cpu()
        x_BTF = network.linear_inputs(batch["text_features"], batch["segments"], features_BTF)
        results += [x_TF[rm_input.judged_outputs] for rm_input, x_TF in zip(part, x_BTF)]
    return results


def start_with_segments(
    network: nn.Module, inputs: RMInputs, examples: Sequence[tuple[RMInput, Sequence[int]]]
) -> None:
    """Start a network that labels segments. A network without `text_features` stays as it is.

    Args:
      examples: inputs with a label, or IGNORED, for each of their outputs.
    """
    if not isinstance(network, LanguageModelScorer) or network.feature_head is None:
        return
    segments = linear_inputs(network, inputs, [rm_input for rm_input, _ in examples])
    x: list[np.ndarray] = []
    y: list[int] = []
    for (rm_input, labels), x_SF in zip(examples, segments):
        for output, x_F in zip(rm_input.judged_outputs, x_SF):
            if labels[output] != IGNORED:
                x.append(x_F.numpy())
                y.append(labels[output])
    network.start_as(_fit_labels(np.array(x), np.array(y), network.config.num_labels or 0))


def start_with_pairs(
    network: nn.Module,
    inputs: RMInputs,
    examples: Sequence[tuple[Sequence[RMInput], Sequence[Pair]]],
) -> None:
    """Start a network that scores responses. A network without `text_features` stays as it is.

    Args:
      examples: inputs of a prompt's responses, and the pairs of them.
    """
    if not isinstance(network, LanguageModelScorer) or network.feature_head is None:
        return
    rm_inputs = [rm_input for responses, _ in examples for rm_input in responses]
    x_NF = torch.cat(linear_inputs(network, inputs, rm_inputs)).numpy()
    better = []
    worse = []
    first = 0
    for responses, pairs in examples:
        better += [first + winner for winner, _, _ in pairs]
        worse += [first + loser for _, loser, _ in pairs]
        first += len(responses)
    network.start_as(_fit_pairs(x_NF, better, worse))


def _fit_labels(x_NF: np.ndarray, labels_N: np.ndarray, num_labels: int) -> LinearModel:
    """p(label) = softmax(logits). Labels that do not occur keep weights of 0."""
    mean_F, std_F = _moments(x_NF)
    weights_CF = np.zeros((num_labels, x_NF.shape[1]))
    bias_C = np.zeros(num_labels)
    present = np.unique(labels_N)
    if len(present) > 1:
        regression: Any = LogisticRegression(max_iter=MOST_STEPS)
        regression.fit((x_NF - mean_F) / std_F, labels_N)
        if len(present) == 2:  # scikit-learn gives the log-odds of the second class
            weights_CF[present[1]] = regression.coef_[0]
            bias_C[present[1]] = regression.intercept_[0]
        else:
            weights_CF[present] = regression.coef_
            bias_C[present] = regression.intercept_
    return _linear_model(mean_F, std_F, weights_CF, bias_C)


def _fit_pairs(x_NF: np.ndarray, better: Sequence[int], worse: Sequence[int]) -> LinearModel:
    """P(a is better than b) = sigmoid(w . (x_a - x_b)) (Bradley and Terry 1952), from Q pairs."""
    mean_F, std_F = _moments(x_NF)
    difference_QF = (x_NF[list(better)] - x_NF[list(worse)]) / std_F
    both_ways = np.concatenate([difference_QF, -difference_QF])
    won = np.repeat([1, 0], len(difference_QF))
    # every pair counts twice, so the penalty has to count twice as well
    regression: Any = LogisticRegression(C=0.5, fit_intercept=False, max_iter=MOST_STEPS)
    regression.fit(both_ways, won)
    return _linear_model(mean_F, std_F, regression.coef_, np.zeros(1))


def _moments(x_NF: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    std_F = x_NF.std(0)
    return x_NF.mean(0), np.where(std_F > 0, std_F, 1.0)


def _linear_model(*arrays: np.ndarray) -> LinearModel:
    return LinearModel(*(torch.tensor(array, dtype=torch.float32) for array in arrays))
