"""Weights in the order in which oneDNN reads them (fgrlhf/kernels/layers.py)."""

import pytest
import tiny
import torch
from torch import nn

from fgrlhf.configs.sections import Sampling
from fgrlhf.kernels import choice, layers
from fgrlhf.kernels.layers import Linear, packed_weights

pytestmark = pytest.mark.skipif(
    not (choice.onednn_available() and choice.has_bf16()), reason="no instructions for bf16"
)


@pytest.fixture
def every_weight(monkeypatch):
    """Small weights are packed too."""
    monkeypatch.setattr(layers, "LEAST_WEIGHTS", 1)


def two_layers(biased=True) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(Linear(48, 80, bias=biased), Linear(80, 33, bias=biased))
    return model.to(torch.bfloat16)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize("biased", [True, False])
@torch.no_grad()
def test_a_packed_weight_gives_the_same_bits(every_weight, biased):
    model = two_layers(biased)
    for shape in [(1, 48), (4, 48), (32, 1, 48), (3, 70, 48)]:
        x = rows(*shape)
        ordinary = model(x)
        with packed_weights(model, 64):
            assert all("forward" in vars(layer) for layer in model)
            assert model(x).equal(ordinary)
            assert model(torch.stack([x, x], 1)[:, 0]).equal(ordinary)  # a strided input
        assert not any("forward" in vars(layer) for layer in model)


@torch.no_grad()
def test_under_autocast_too(every_weight):
    model, x = two_layers().float(), torch.randn(5, 48)
    with torch.autocast("cpu", torch.bfloat16):
        ordinary = model(x)
        with packed_weights(model, 64):
            assert model(x).equal(ordinary)


@torch.no_grad()
def test_layers_are_ordinary_after_an_error_and_read_changed_weights(every_weight):
    model, x = two_layers(), rows(5, 48)
    with pytest.raises(RuntimeError, match="stop"), packed_weights(model, 64):
        raise RuntimeError("stop")
    model[0].weight.zero_()
    with packed_weights(model, 64):
        expected = model[1](model[0].bias.expand(5, -1))
        assert model(x).equal(expected)


class Attention(nn.Module):
    def __init__(self, biases: tuple[bool, bool, bool]):
        super().__init__()
        self.q_proj = Linear(48, 80, bias=biases[0])
        self.k_proj = Linear(48, 16, bias=biases[1])
        self.v_proj = Linear(48, 24, bias=biases[2])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in (self.q_proj, self.k_proj, self.v_proj)]


@pytest.mark.parametrize(
    "biases, products", [((True,) * 3, 1), ((False,) * 3, 1), ((True, False, True), 3)]
)
@torch.no_grad()
def test_layers_with_the_same_states_are_one_product(every_weight, biases, products, monkeypatch):
    model = Attention(biases).to(torch.bfloat16)
    x, other = rows(4, 1, 48), rows(4, 1, 48)
    ordinary = [model(states) for states in (x, other, x)]
    calls = []
    product = choice.onednn_linear
    monkeypatch.setattr(choice, "onednn_linear", lambda *a: calls.append(1) or product(*a))
    with packed_weights(model, 64):
        packed = [model(states) for states in (x, other, x)]
        assert len(calls) == 3 * products
        # states changed in between, as in cross-attention
        assert model.q_proj(x).equal(ordinary[0][0]) and model.k_proj(other).equal(ordinary[1][1])
    for expected, result in zip(ordinary, packed):
        assert all(a.equal(b) for a, b in zip(expected, result))


@pytest.mark.parametrize("reason", ["few tokens", "small", "fp32"])
@torch.no_grad()
def test_what_is_not_packed(every_weight, monkeypatch, reason):
    if reason == "small":
        monkeypatch.undo()
    model = two_layers().float() if reason == "fp32" else two_layers()
    with packed_weights(model, 1 if reason == "few tokens" else 64):
        assert not any("forward" in vars(layer) for layer in model)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_samples_are_the_same(every_weight, kind, monkeypatch):
    policy = tiny.policy(kind).eval()
    prompt = policy.encode(["the red cat", "a dog sees the bird and one two three"])

    def sampled():
        with torch.autocast("cpu", torch.bfloat16):
            return policy.generate(*prompt, Sampling(max_new_tokens=9, top_p=0.9), range(4), 2)

    with_packing = sampled()
    monkeypatch.setattr(layers, "LEAST_TOKENS", 10)
    without = sampled()
    assert with_packing.ids_BT.equal(without.ids_BT)
    assert with_packing.logprobs_BT.equal(without.logprobs_BT)
