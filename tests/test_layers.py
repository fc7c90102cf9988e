import copy

import pytest
import tiny
import torch
from rounding import assert_equal_up_to_rounding
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm
from transformers.pytorch_utils import Conv1D

from fgrlhf.base_trainer import recompute_layers
from fgrlhf.kernels import choice as kernels
from fgrlhf.kernels import layers
from fgrlhf.kernels.layers import (
    Dropout,
    Linear,
    LlamaNorm,
    MT5Norm,
    Qwen3Norm,
    ReluFeedForward,
    T5Norm,
    TransposedLinear,
    dropout_mask,
    fast_layers,
    linear,
)

needs_onednn = pytest.mark.skipif(
    not kernels.onednn_available(), reason="this PyTorch has no oneDNN"
)
ONEDNN_FOR_ALL = {"small": "onednn", "medium": "onednn", "large": "onednn"}


@pytest.fixture
def all_products(monkeypatch):
    """Every product uses oneDNN if available, however small it is."""
    choice = (
        {**ONEDNN_FOR_ALL, "every": "onednn"}
        if kernels.onednn_available()
        else dict.fromkeys(ONEDNN_FOR_ALL, "pytorch")
    )
    monkeypatch.setattr(kernels, "_chosen", choice)


T5_SIZES = {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2}
T5_SIZES |= {"num_heads": 4, "decoder_start_token_id": 0, "initializer_factor": 0.3}


def t5(**changes):
    return T5ForConditionalGeneration(T5Config(**T5_SIZES, **changes))


def gpt2():
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, **sizes))


def mt5():
    return MT5ForConditionalGeneration(MT5Config(**T5_SIZES))


def llama():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, num_attention_heads=4, **sizes))


def strided(rows, columns):
    return torch.randn(rows, 3, columns)[:, 1]


@needs_onednn
@pytest.mark.parametrize("shape", [(7, 16), (3, 5, 16), (1, 16), (0, 16)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_has_the_result_and_the_gradients_of_pytorch(all_products, shape, biased):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape), torch.randn(9, 16), torch.randn(9) if biased else None
    inputs = [t.requires_grad_() for t in (x, weight, bias) if t is not None]
    expected = nn.functional.linear(x, weight, bias)
    result = linear(x, weight, bias)
    torch.testing.assert_close(result, expected)
    if not x.numel():
        return
    function = result.grad_fn.next_functions[0][0]  # behind the view of the result's shape
    assert "_LinearFunction" in type(function).__name__
    weights = torch.randn(expected.shape)
    first = [
        torch.autograd.grad((y.tanh() * weights).sum(), inputs, create_graph=True)
        for y in (result, expected)
    ]
    torch.testing.assert_close(*first, atol=1e-5, rtol=1e-4)
    second = [
        torch.autograd.grad(sum(g.sin().sum() for g in gradients), inputs) for gradients in first
    ]
    torch.testing.assert_close(*second, atol=1e-4, rtol=1e-4)


@needs_onednn
def test_a_bias_that_is_trained_alone_gets_its_gradient(all_products):
    x, weight, bias = torch.randn(7, 16), torch.randn(9, 16), torch.zeros(9, requires_grad=True)
    linear(x, weight, bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((9,), 7.0))


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
def test_linear_reads_any_layout(all_products, make):
    x, weight = make()
    torch.testing.assert_close(linear(x, weight), x @ weight.T)


@needs_onednn
@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_onednn_gets_no_weight_in_a_layout_that_is_slow(all_products, monkeypatch, layout):
    weights = []

    def multiply(x, weight, *rest):
        weights.append(weight)
        return x @ weight.T

    monkeypatch.setattr(kernels, "onednn_linear", multiply)
    weights_of = {"rows": torch.randn(9, 16), "columns": torch.randn(16, 9).T}
    weight = (weights_of | {"strided": strided(9, 16)})[layout]
    linear(torch.randn(7, 16), weight)
    (passed,) = weights
    assert passed.is_contiguous() or passed.T.is_contiguous()
    assert (passed is weight) == (layout != "strided")


@pytest.mark.parametrize(
    "x, weight",
    [
        (torch.randn(3, 4), torch.randn(2, 4)),
        (torch.randn(300, 256, dtype=torch.float64), torch.randn(256, 256, dtype=torch.float64)),
        (torch.randn(300, 256, dtype=torch.bfloat16), torch.randn(256, 256, dtype=torch.bfloat16)),
    ],
)
def test_small_products_and_other_dtypes_go_to_pytorch(monkeypatch, x, weight):
    monkeypatch.setattr(kernels, "_chosen", ONEDNN_FOR_ALL)
    monkeypatch.setattr(layers, "_onednn_linear", None)
    assert torch.equal(linear(x, weight), nn.functional.linear(x, weight))


def test_products_under_autocast_go_to_pytorch(monkeypatch):
    monkeypatch.setattr(kernels, "_chosen", ONEDNN_FOR_ALL)
    monkeypatch.setattr(layers, "_onednn_linear", None)
    x, weight = torch.randn(300, 256), torch.randn(256, 256)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


@pytest.mark.parametrize("make", [t5, mt5, gpt2, llama])
def test_a_model_keeps_its_results_gradients_and_names(all_products, make):
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
    for actual, expected in zip(gradients[1], gradients[0]):
        assert_equal_up_to_rounding(actual, expected)
    torch.testing.assert_close(gradients[2], gradients[1], atol=0, rtol=0)


def test_a_result_may_be_changed_in_place(all_products):
    """As LED scales its queries, between a linear layer and the product of queries and keys."""
    x, weight = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4)
    y = linear(x, weight)
    y /= 2
    y.sum().backward()
    assert y.shape == (2, 3, 5)
    assert_equal_up_to_rounding(x.grad, (weight.sum(0) / 2).expand(2, 3, 4))


def test_which_layers_are_changed():
    model = fast_layers(t5())
    assert isinstance(model.encoder.block[0].layer[1].DenseReluDense, ReluFeedForward)
    assert isinstance(model.lm_head, Linear) and isinstance(model.encoder.dropout, Dropout)
    gated = fast_layers(t5(feed_forward_proj="gated-gelu"))
    assert not any(isinstance(m, ReluFeedForward) for m in gated.modules())
    assert isinstance(fast_layers(gpt2()).transformer.h[0].mlp.c_fc, TransposedLinear)
    assert isinstance(model.encoder.final_layer_norm, T5Norm)
    assert isinstance(fast_layers(mt5()).encoder.final_layer_norm, MT5Norm)
    assert isinstance(fast_layers(llama()).model.norm, LlamaNorm)
    qwen3 = fast_layers(tiny.policy("qwen3").model)
    assert isinstance(qwen3.model.layers[0].self_attn.q_norm, Qwen3Norm)


def test_a_norm_by_hand():
    layer = T5Norm(2, eps=0.0)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 1.0]))
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    # r = 1 / sqrt((9 + 16) / 2)
    r = 12.5**-0.5
    y = layer(x)
    torch.testing.assert_close(y, torch.tensor([[2 * 3 * r, 4 * r]]))
    y[0, 0].backward()  # g = (1, 0): the mean of g w x r is 2 * 3 r / 2 = 3 r
    torch.testing.assert_close(layer.weight.grad, torch.tensor([3 * r, 0.0]))
    torch.testing.assert_close(x.grad, torch.tensor([[r * (2 - 9 * r**2), r * (0 - 12 * r**2)]]))


@pytest.mark.parametrize("trained", ["input", "weight", "both"])
@pytest.mark.parametrize("norms", [(T5Norm, T5LayerNorm), (LlamaNorm, LlamaRMSNorm)])
def test_a_norm_has_the_gradients_of_transformers_also_the_second_ones(norms, trained):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 16, requires_grad=trained != "weight")
    weight = (torch.rand(16) + 0.5).requires_grad_(trained != "input")
    inputs = [t for t in (x, weight) if t.requires_grad]
    g = torch.randn(3, 4, 16)
    results = []
    for norm in norms:
        layer = norm(16)
        layer.weight = nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
        y = layer(x)
        own = [layer.weight if t is weight else t for t in inputs]
        first = torch.autograd.grad((y * g).sum(), own, create_graph=True)
        results.append([y, *first])
        if trained != "weight":  # y is linear in the weight
            results[-1] += torch.autograd.grad(sum(f.sin().sum() for f in first), own)
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


def test_norms_in_other_types_are_those_of_transformers(monkeypatch):
    monkeypatch.setattr(layers, "_RMSNorm", None)
    for dtype in (torch.bfloat16, torch.float64):
        layer = LlamaNorm(8).to(dtype)
        x = torch.randn(2, 8, dtype=dtype)
        plain = LlamaRMSNorm(8).to(dtype)
        torch.testing.assert_close(layer(x), plain(x), atol=0, rtol=0)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_entries_are_dropped_with_probability_p_and_independently(p):
    torch.manual_seed(0)
    dropped = 1 - dropout_mask((1001, 1003), p).double()
    std = (p * (1 - p)) ** 0.5
    assert abs(dropped.mean() - p) < 4 * std / 1e3
    for place in range(4):  # each of the four entries of one random number
        assert abs(dropped.flatten()[place::4].mean() - p) < 4 * std / 500
    centred = dropped.flatten() - p
    for lag in (1, 2, 3, 4):
        assert abs((centred[:-lag] * centred[lag:]).mean()) < 4 * std**2 / 1e3
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
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()


def test_a_feed_forward_layer_computes_what_t5s_does():
    torch.manual_seed(0)
    plain = t5(dropout_rate=0.3).double().encoder.block[0].layer[1].DenseReluDense
    fast = fast_layers(copy.deepcopy(plain))
    x = torch.randn(20, 16, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(fast.eval()(x), plain.eval()(x))
    torch.manual_seed(1)
    result = fast.train()(x)
    torch.manual_seed(1)
    mask = dropout_mask((20, 32), 0.3).double() / 0.7
    expected = fast.wo(fast.wi(x).relu() * mask)
    torch.testing.assert_close(result, expected)
    inputs = [x, fast.wi.weight, fast.wo.weight]
    gradients = [torch.autograd.grad(y.sin().sum(), inputs) for y in (result, expected)]
    torch.testing.assert_close(*gradients)


def test_a_feed_forward_layer_stores_one_array_of_its_width():
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
def test_recomputed_layers_have_the_same_gradients_and_store_less(make, training):
    plain = fast_layers(make()).train(training)
    recomputing = copy.deepcopy(recompute_layers(copy.deepcopy(plain)))
    ids = torch.randint(2, 50, (3, 9))

    def stored_and_gradients(model):
        torch.manual_seed(1)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.nbytes) or t, lambda t: t
        ):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        return sum(sizes), loss, torch.autograd.grad(loss, list(model.parameters()))

    stored_by_plain, *expected = stored_and_gradients(plain)
    stored, *recomputed = stored_and_gradients(recomputing)
    torch.testing.assert_close(recomputed, expected, atol=0, rtol=0)
    assert stored < 0.5 * stored_by_plain
    with torch.no_grad():
        assert not recomputing(input_ids=ids, labels=ids).loss.requires_grad
