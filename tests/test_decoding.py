"""Drawing tokens without sorting the vocabulary (fgrlhf/models/decoding.py)."""

import pytest
import torch
from torch import Tensor

from fgrlhf.models import decoding
from fgrlhf.models.decoding import CANDIDATES, Sampling, draw

V = 5000
ROWS = 200


def expected_draw(logits_V: Tensor, sampling: Sampling, uniform: float) -> list[int]:
    """The token, or the two of which rounding decides, by sorting everything in float64."""
    logits_V = logits_V.double() / sampling.temperature
    order_V = logits_V.argsort(descending=True, stable=True)
    if sampling.top_k:
        order_V = order_V[: sampling.top_k]
    probs = logits_V[order_V].softmax(-1) if sampling.top_k else logits_V.softmax(-1)[order_V]
    if sampling.top_p is not None:
        before = probs.cumsum(-1) - probs
        probs = probs[before < sampling.top_p]
    cumulative = probs.cumsum(-1)
    target = uniform * cumulative[-1]
    choices = []
    for shift in (-1e-5, 1e-5):
        choice = int((cumulative > target + shift).int().argmax())
        choices.append(int(order_V[choice]))
    return choices


@pytest.mark.parametrize("scale", [0.1, 1.5, 6.0])  # flat, like a language model, peaked
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1),
        Sampling(1, top_p=0.9),
        Sampling(1, top_p=0.3, temperature=0.7),
        Sampling(1, top_k=20),
        Sampling(1, top_k=300, top_p=0.8),
    ],
)
def test_the_drawn_token_is_that_of_a_sorted_vocabulary(sampling, scale):
    generator = torch.Generator().manual_seed(0)
    logits_BV = torch.randn(ROWS, V, generator=generator) * scale
    uniform_B = torch.rand(ROWS, generator=generator)
    drawn_B = draw(logits_BV, sampling, uniform_B)
    decided = 0
    for logits_V, uniform, drawn in zip(logits_BV, uniform_B.tolist(), drawn_B.tolist()):
        low, high = expected_draw(logits_V, sampling, uniform)
        if low == high:
            decided += 1
            assert drawn == low
    assert decided > 0.6 * ROWS  # rounding decides few rows (more if the distribution is flat)


def test_only_rows_that_need_more_candidates_sort_more(monkeypatch):
    sorted_sizes = []

    def topk(logits_BV, count, dim):
        sorted_sizes.append((len(logits_BV), count))
        return torch.ops.aten.topk(logits_BV, count, dim)

    monkeypatch.setattr(decoding.torch, "topk", topk)
    logits_3V = torch.zeros(3, V)
    logits_3V[0, 7] = 30.0  # the first candidate has all the probability
    logits_3V[1, :1000] = 30.0  # a thousand equal tokens
    uniform_3 = torch.tensor([0.5, 0.5, 0.9999])  # and 5,000 equal ones
    drawn_3 = draw(logits_3V, Sampling(1), uniform_3)
    assert sorted_sizes == [(3, CANDIDATES[0]), (2, CANDIDATES[1]), (1, V)]
    assert drawn_3[0] == 7
    assert drawn_3[1] < 1000


@pytest.mark.parametrize("top_p", [None, 0.5, 1.0])
def test_the_largest_random_number_draws_a_token_with_probability(top_p):
    largest = 1 - 2**-24
    logits_BV = torch.full((1, V), -torch.inf)
    logits_BV[0, [3, 4000]] = torch.tensor([1.0, 0.0])
    drawn = draw(logits_BV, Sampling(1, top_p=top_p), torch.tensor([largest]))
    assert int(drawn) == (3 if top_p == 0.5 else 4000)
