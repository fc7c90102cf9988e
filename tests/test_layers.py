import copy

import pytest
import rl_helpers as rl
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration
from transformers.pytorch_utils import Conv1D

from fgrlhf.kernels import choice as kernels
from fgrlhf.kernels import layers
from fgrlhf.kernels.layers import (
    Dropout,
    Linear,
    ReluFeedForward,
    TransposedLinear,
    dropout_mask,
    fast_layers,
    linear,
)
from fgrlhf.models.recompute import recompute_layers

needs_onednn = pytest.mark.skipif(
    not kernels.onednn_available(), reason="this PyTorch has no oneDNN"
)
ONEDNN_FOR_ALL = {"small": "onednn", "medium": "onednn", "large": "onednn"}


@pytest.fixture
def all_products(monkeypatch):
    """Every product goes to oneDNN where there is one, however small it is."""
    choice = (
        {**ONEDNN_FOR_ALL, "every": "onednn"}
        if kernels.onednn_available()
        else dict.fromkeys(ONEDNN_FOR_ALL, "pytorch")
    )
    monkeypatch.setattr(kernels, "_chosen", choice)


def t5(**changes):
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=50,
            d_model=16,
            d_kv=4,
            d_ff=32,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            initializer_factor=0.3,
            **changes,
        )
    )


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=4, n_positions=32)
    )


def strided(rows, columns):
    return torch.randn(rows, 3, columns)[:, 1]


@needs_onednn
@pytest.mark.parametrize("shape", [(7, 16), (3, 5, 16), (1, 16), (0, 16)])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_is_that_of_pytorch_and_so_are_its_gradients(all_products, shape, biased):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape), torch.randn(9, 16), torch.randn(9) if biased else None
    inputs = [t.requires_grad_() for t in (x, weight, bias) if t is not None]
    expected, found = nn.functional.linear(x, weight, bias), linear(x, weight, bias)
    torch.testing.assert_close(found, expected)
    if not x.numel():
        return
    assert "_LinearFunction" in type(found.grad_fn).__name__
    weights = torch.randn(expected.shape)
    once = [
        torch.autograd.grad((y.tanh() * weights).sum(), inputs, create_graph=True)
        for y in (found, expected)
    ]
    torch.testing.assert_close(*once, atol=1e-5, rtol=1e-4)
    twice = [
        torch.autograd.grad(sum(g.sin().sum() for g in gradients), inputs) for gradients in once
    ]
    torch.testing.assert_close(*twice, atol=1e-4, rtol=1e-4)


@needs_onednn
@pytest.mark.parametrize(
    "make",
    [
        lambda: (strided(7, 16), torch.randn(9, 16)),
        lambda: (torch.randn(7, 16), strided(9, 16)),
        lambda: (torch.randn(16, 7).T, torch.randn(16, 9).T),
        lambda: (torch.randn(1, 16).expand(7, 16), torch.randn(1, 16).expand(9, 16)),
        lambda: (torch.randn(7, 1).expand(7, 16), torch.randn(9, 1).expand(9, 16)),
    ],
)
def test_a_product_reads_any_layout(all_products, make):
    x, weight = make()
    torch.testing.assert_close(linear(x, weight), x @ weight.T)


@needs_onednn
@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_no_layout_of_the_weight_is_handed_to_the_slow_code_of_onednn(
    all_products, monkeypatch, layout
):
    given = []

    def multiply(x, weight, *rest):
        given.append(weight)
        return x @ weight.T

    monkeypatch.setattr(kernels, "onednn_linear", multiply)
    weight = {
        "rows": torch.randn(9, 16),
        "columns": torch.randn(16, 9).T,
        "strided": strided(9, 16),
    }[layout]
    linear(torch.randn(7, 16), weight)
    (seen,) = given
    assert seen.is_contiguous() or seen.T.is_contiguous()
    assert (seen is weight) == (layout != "strided")


@pytest.mark.parametrize(
    "x, weight",
    [
        (torch.randn(3, 4), torch.randn(2, 4)),
        (torch.randn(300, 256, dtype=torch.float64), torch.randn(256, 256, dtype=torch.float64)),
        (torch.randn(300, 256, dtype=torch.bfloat16), torch.randn(256, 256, dtype=torch.bfloat16)),
    ],
)
def test_what_is_small_or_not_fp32_is_left_to_pytorch(monkeypatch, x, weight):
    monkeypatch.setattr(kernels, "_chosen", ONEDNN_FOR_ALL)
    monkeypatch.setattr(layers, "_onednn_linear", None)
    assert torch.equal(linear(x, weight), nn.functional.linear(x, weight))


def test_autocast_is_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(kernels, "_chosen", ONEDNN_FOR_ALL)
    monkeypatch.setattr(layers, "_onednn_linear", None)
    x, weight = torch.randn(300, 256), torch.randn(256, 256)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


@pytest.mark.parametrize("make", [t5, gpt2])
def test_a_model_keeps_its_numbers_gradients_and_names(all_products, make):
    torch.manual_seed(0)
    plain = make().eval()
    fast = fast_layers(copy.deepcopy(plain))
    copied = copy.deepcopy(fast)
    assert list(fast.state_dict()) == list(plain.state_dict())
    assert {type(m) for m in fast.modules()}.isdisjoint({nn.Linear, Conv1D, nn.Dropout})
    ids = torch.randint(2, 50, (3, 9))
    gradients = []
    for model in (plain, fast, copied):
        output = model(input_ids=ids, labels=ids)
        gradients.append(
            (output.logits, torch.autograd.grad(output.loss, list(model.parameters())))
        )
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradients[2], gradients[1], atol=0, rtol=0)


def test_which_layers_are_changed():
    model = fast_layers(t5())
    assert isinstance(model.encoder.block[0].layer[1].DenseReluDense, ReluFeedForward)
    assert isinstance(model.lm_head, Linear) and isinstance(model.encoder.dropout, Dropout)
    gated = fast_layers(t5(feed_forward_proj="gated-gelu"))
    assert not any(isinstance(m, ReluFeedForward) for m in gated.modules())
    assert isinstance(fast_layers(gpt2()).transformer.h[0].mlp.c_fc, TransposedLinear)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_draws_are_as_probable_as_asked_and_independent(p):
    torch.manual_seed(0)
    bits = 1 - dropout_mask((1001, 1003), p).double()
    error = (p * (1 - p)) ** 0.5
    assert abs(bits.mean() - p) < 4 * error / 1e3
    for four in range(4):  # each of the four that one draw gives
        assert abs(bits.flatten()[four::4].mean() - p) < 4 * error / 500
    centred = bits.flatten() - p
    for apart in (1, 2, 3, 4):
        assert abs((centred[:-apart] * centred[apart:]).mean()) < 4 * error**2 / 1e3
    assert dropout_mask((3, 1), p).shape == (3, 1)


def test_dropout_is_a_mask_in_both_directions_and_off_in_evaluation():
    x = torch.randn(50, 40, dtype=torch.float64, requires_grad=True)
    layer = Dropout(0.3)
    torch.manual_seed(1)
    y = layer(x)
    torch.manual_seed(1)
    mask = dropout_mask(x.shape, 0.3).double() / 0.7
    torch.testing.assert_close(y, x * mask)
    weights = torch.randn(x.shape, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad((y * weights).sum(), x)[0], mask * weights)
    assert (
        torch.equal(layer.eval()(x), x)
        and torch.equal(Dropout(0.0)(x), x)
        and not Dropout(1.0)(x).any()
    )


def test_a_feed_forward_layer_is_t5s():
    torch.manual_seed(0)
    plain = t5(dropout_rate=0.3).double().encoder.block[0].layer[1].DenseReluDense
    fast = fast_layers(copy.deepcopy(plain))
    x = torch.randn(20, 16, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(fast.eval()(x), plain.eval()(x))
    torch.manual_seed(1)
    found = fast.train()(x)
    torch.manual_seed(1)
    mask = dropout_mask((20, 32), 0.3).double() / 0.7
    expected = fast.wo(fast.wi(x).relu() * mask)
    torch.testing.assert_close(found, expected)
    of = [x, fast.wi.weight, fast.wo.weight]
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), of) for y in (found, expected)))


def test_a_feed_forward_layer_keeps_one_array_of_its_width():
    layer = fast_layers(t5(dropout_rate=0.3)).encoder.block[0].layer[1].DenseReluDense.train()
    wide = set()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: wide.add(t.data_ptr()) if t.shape == (20, 32) else None, lambda t: t
    ):
        layer(torch.randn(20, 16, requires_grad=True))
    assert len(wide) == 1


# ---- recomputation -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: t5(dropout_rate=0.3), gpt2])
@pytest.mark.parametrize("training", [True, False])
def test_recomputed_layers_have_the_same_gradients_and_keep_less(make, training):
    plain = fast_layers(make()).train(training)
    twice = copy.deepcopy(recompute_layers(copy.deepcopy(plain)))
    ids = torch.randint(2, 50, (3, 9))
    found = []
    for model in (plain, twice):
        torch.manual_seed(1)
        bytes_kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: bytes_kept.append(t.nbytes) or t, lambda t: t
        ):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        found.append((sum(bytes_kept), loss, torch.autograd.grad(loss, list(model.parameters()))))
    (kept_by_plain, *expected), (kept_by_twice, *recomputed) = found
    torch.testing.assert_close(recomputed, expected, atol=0, rtol=0)
    assert kept_by_twice < 0.5 * kept_by_plain
    with torch.no_grad():
        assert not twice(input_ids=ids, labels=ids).loss.requires_grad


@pytest.mark.parametrize(
    "kind, name", [("t5", "ppo"), ("gpt2", "ppo"), ("t5", "trpo"), ("t5", "nlpo")]
)
def test_a_run_with_gradient_checkpointing_is_the_same_run(tmp_path, kind, name):
    runs = []
    for on in (False, True):
        cfg = rl.config(
            tmp_path / str(on),
            algorithm__name=name,
            train__gradient_checkpointing=on,
            train__dropout=name != "trpo",
            model__value_model={"ckpt": "tiny"},
        )
        rl.trainer(cfg, kind, dropout=0.0 if name == "trpo" else 0.2, own_value=True).train(2)
        runs.append(rl.metrics(tmp_path / str(on)))
    assert len(runs[0]) == 2 and runs[1] == runs[0]
