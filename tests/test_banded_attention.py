"""Attention in blocks equals the stock Longformer's and a dense attention with a mask."""

import copy
from pathlib import Path

import pytest
import rm_helpers as rm
import tiny
import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
    LongformerModel,
)
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.kernels.longformer import (
    BandedLongformer,
    BandedSelfAttention,
    banded_attention,
    use_banded_attention,
)
from fgrlhf.models.lora import adapters_off, add_adapters
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.spec import RewardModelSpec
from reward_modeling.config import RMModelConfig
from reward_modeling.network import load_network

VOCABULARY = 50
KINDS = {"token": LongformerForTokenClassification, "sequence": LongformerForSequenceClassification}
GLOBAL_LAYERS = ["query_global", "key_global", "value_global"]
LENGTHS = (1, 3, 4, 5, 8, 9, 12, 13, 16, 31, 40)  # one side of the window is 4


def pair(kind: str, dropout: float = 0.0, **changes) -> tuple[nn.Module, nn.Module]:
    """A stock model and its copy with attention in blocks.

    The weights are large, so that scores differ and every key matters.
    """
    config = rm.longformer_config(VOCABULARY, num_labels=3 if kind == "token" else 1)
    config.update({"attention_probs_dropout_prob": dropout, **changes})
    torch.manual_seed(0)
    stock = KINDS[kind](config).eval()
    with torch.no_grad():
        for name, parameter in stock.named_parameters():
            if "LayerNorm" not in name:
                parameter.normal_(0, 0.2)
    return stock, use_banded_attention(copy.deepcopy(stock))


def batch(length: int, padding: str = "none", marks: str = "default") -> dict[str, torch.Tensor]:
    """Three rows.

    Args:
      length: tokens.
      padding: "none", "ends" of the rows, or "holes" anywhere.
      marks: "default" global tokens, or "many".
    """
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(2, VOCABULARY, (3, length), generator=generator)
    mask = torch.ones_like(ids)
    if padding == "ends":
        for row, cut in ((1, length // 3), (2, length - 1)):  # the last row keeps one token
            mask[row, length - cut :] = 0
    elif padding == "holes":
        mask = (torch.rand(3, length, generator=generator) < 0.6).long()
        mask[:, 0] = 1
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    if marks == "many":  # a different number in every row, none in the last; some on padding
        is_global = (torch.rand(3, length, generator=generator) < 0.3).long()
        is_global[2] = 0
        inputs["global_attention_mask"] = is_global
    return inputs


def run(model: nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Logits, hidden states of all layers (padding included), gradients of all parameters."""
    model.zero_grad()
    output = model(**inputs, output_hidden_states=True)
    weights = torch.linspace(-1, 1, output.logits.numel()).view_as(output.logits)
    (output.logits * weights).sum().backward()
    states = {f"hidden {i}": state for i, state in enumerate(output.hidden_states)}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"logits": output.logits, **states, **gradients}


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, name: str = "") -> None:
    """Check equality to 1e-5, relative to the largest number if that is above 1."""
    tolerance = 1e-5 * max(1.0, float(theirs.detach().abs().max()))
    torch.testing.assert_close(
        ours, theirs, rtol=0, atol=tolerance, msg=lambda text: f"{name}: {text}"
    )


def assert_same(
    banded: dict[str, torch.Tensor | None], stock: dict[str, torch.Tensor | None]
) -> None:
    """Check equality, including which parameters have no gradient: DDP treats them differently."""
    assert {name for name in stock if stock[name] is None} == {
        name for name in banded if banded[name] is None
    }
    for name, tensor in stock.items():
        if tensor is not None:
            assert_near(banded[name], tensor, name)


# ---- results of the stock model ------------------------------------------------------------------


@pytest.mark.parametrize("marks", ["default", "many"])
@pytest.mark.parametrize("padding", ["none", "ends", "holes"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_equal_the_stock_models(kind, padding, marks):
    stock, banded = pair(kind)
    for length in LENGTHS:
        inputs = batch(length, padding, marks)
        assert_same(run(banded, inputs), run(stock, inputs))


@pytest.mark.parametrize("padding", ["none", "ends"])
def test_adapters_on_the_projections_of_global_tokens(padding):
    stock, banded = pair("sequence")
    for model in (stock, banded):
        torch.manual_seed(0)
        add_adapters(model.base_model, LoRAConfig(r=2, target_modules=GLOBAL_LAYERS))
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                nn.init.normal_(parameter, std=0.2)
    inputs = batch(13, padding)
    ours = run(banded, inputs)
    assert_same(ours, run(stock, inputs))
    gradients = [x for name, x in ours.items() if "_global.lora_" in name]
    # two adapted matrices in each of three projections of two layers
    assert len(gradients) == 12 and all(bool(x.any()) for x in gradients)
    with adapters_off(banded), adapters_off(stock):
        assert_near(banded(**inputs).logits, stock(**inputs).logits)


@pytest.mark.parametrize("window", [4, [4, 16], 64])
@pytest.mark.parametrize("kind", KINDS)
def test_other_windows_and_one_for_each_layer(kind, window):
    stock, banded = pair(kind, attention_window=window)
    for length in (7, 33):
        inputs = batch(length, "ends")
        assert_same(run(banded, inputs), run(stock, inputs))


def test_without_a_mask_with_embeddings_and_as_a_tuple():
    stock, banded = pair("token")
    ids = batch(13)["input_ids"]
    assert_same(run(banded, {"input_ids": ids}), run(stock, {"input_ids": ids}))
    embeddings = {"inputs_embeds": torch.randn(2, 16, 32)}
    assert_same(run(banded, embeddings), run(stock, embeddings))
    options = {"return_dict": False, "output_hidden_states": True}
    for ours, theirs in zip(banded(ids, **options)[1], stock(ids, **options)[1], strict=True):
        assert_near(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_in_bf16_the_error_is_that_of_the_stock_model(kind):
    stock, banded = pair(kind)
    inputs = batch(31, "ends")
    exact = stock(**inputs).logits

    def error(model, **options):
        with torch.autocast("cpu", torch.bfloat16, **options):
            logits = model(**inputs).logits
        logits.float().sum().backward()
        return (logits - exact).detach().abs().mean()

    assert 0 < error(banded) < 1.5 * error(stock)  # mixed precision, as in training
    for model in (stock, banded):
        model.to(torch.bfloat16)
    assert 0 < error(banded, enabled=False) < 1.5 * error(stock, enabled=False)


def test_attention_weights_are_refused():
    with pytest.raises(ValueError, match="output_attentions"):
        pair("token")[1](**batch(9), output_attentions=True)


# ---- dense attention with an explicit mask -------------------------------------------------------


@pytest.mark.parametrize("G", [0, 1, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_blocks_are_a_dense_attention_with_a_band_as_mask(length, G):
    torch.manual_seed(length)
    shape, window = (2, 3, length, 5), 4
    query, key, value = torch.randn(3, *shape, dtype=torch.float64).requires_grad_().unbind()
    global_key, global_value = torch.randn(2, 2, 3, G, 5, dtype=torch.float64).unbind()
    masked_BL = torch.rand(2, length) < 0.3
    masked_BL[:, ::window] = False  # so that every query attends to something
    masked_BG = torch.rand(2, G) < 0.3
    distance_LL = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    masked = (distance_LL > window) | masked_BL[:, None, None]
    masked = torch.cat(
        [masked_BG[:, None, None].expand(2, 1, length, G), masked.expand(2, 1, -1, -1)], 3
    )
    scores = query @ torch.cat([global_key, key], 2).mT / 5**0.5
    probabilities = torch.softmax(scores.masked_fill(masked, -torch.inf), -1)
    dense = probabilities @ torch.cat([global_value, value], 2)
    global_kv = (global_key, global_value, masked_BG) if G else None
    blocks = banded_attention(query, key, value, window, masked_BL, global_kv)
    torch.testing.assert_close(blocks, dense, rtol=0, atol=1e-12)
    weights = torch.randn_like(dense)
    for ours, theirs in zip(
        torch.autograd.grad((blocks * weights).sum(), (query, key, value)),
        torch.autograd.grad((dense * weights).sum(), (query, key, value)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


# ---- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("marks", ["default", "many"])
def test_dropout_has_the_stock_distribution_in_training_and_is_off_in_evaluation(marks):
    torch.manual_seed(0)
    n, row = 6000, batch(16, "ends", marks)
    # one row n times: 0 padding, 1 local, 2 global
    kind = row["attention_mask"][1].repeat(n, 1)
    if "global_attention_mask" in row:
        kind = kind * (row["global_attention_mask"][1].repeat(n, 1) + 1)
    hidden = torch.randn(1, 16, 32).repeat(n, 1, 1)

    def moments(layer):
        with torch.no_grad():
            is_global = kind == 2
            output = layer(hidden, kind - 1, kind == 0, is_global, bool(is_global.any()))[0]
        return output.mean(0), output.std(0)

    stock, banded = (
        model.longformer.encoder.layer[0].attention.self for model in pair("token", dropout=0.4)
    )
    (mean, std), (mean_of_stock, std_of_stock) = moments(banded.train()), moments(stock.train())
    real = row["attention_mask"][1].bool()
    assert std_of_stock[real].min() > 0 and std[~real].max() == 0
    assert ((mean - mean_of_stock) / std_of_stock)[real].abs().max() < 0.1  # each is good to 0.02
    assert (std / std_of_stock - 1)[real].abs().max() < 0.1
    (mean, std), (mean_of_stock, _) = moments(banded.eval()), moments(stock.eval())
    assert std.max() < 1e-5
    assert_near(mean, mean_of_stock)


# ---- where it is used ----------------------------------------------------------------------------


def is_banded(model: nn.Module) -> bool:
    kinds = {type(module) for module in model.modules()}
    return {BandedLongformer, BandedSelfAttention} <= kinds and not {
        LongformerModel,
        LongformerSelfAttention,
    } & kinds


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_checkpoint_is_an_ordinary_longformer(tmp_path, kind):
    stock, banded = pair(kind)
    stock.save_pretrained(tmp_path / "stock")
    banded.save_pretrained(tmp_path / "banded")
    names = sorted(path.name for path in (tmp_path / "stock").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "banded").iterdir())
    for name in names:
        assert (tmp_path / "stock" / name).read_bytes() == (tmp_path / "banded" / name).read_bytes()
    auto = {
        "token": AutoModelForTokenClassification,
        "sequence": AutoModelForSequenceClassification,
    }[kind]
    again = auto.from_pretrained(tmp_path / "banded")
    assert not is_banded(again) and is_banded(use_banded_attention(again))
    inputs = batch(17, "ends")
    assert_same(run(again, inputs), run(stock, inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_reward_models_use_it_in_training_and_in_scoring(tmp_path: Path, kind):
    stock, _ = pair(kind)
    tokenizer = tiny.tokenizer("word")
    stock.resize_token_embeddings(len(tokenizer))
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    if kind == "token":
        facts = {"labels": ("NF-ERR", "O", "Ignore"), "error_label": "NF-ERR", "ok_label": "O"}
        spec = RewardModelSpec("segment", "encoder", "subsentence", True, 64, **facts)
    else:
        spec = RewardModelSpec("sequence", "encoder", "sequence", True, 64, mean=0.0, std=1.0)
    spec.save(tmp_path)
    assert is_banded(load_reward_model(tmp_path, rm.prefix_fn).model)
    section = RMModelConfig(ckpt=str(tmp_path), max_input_len=64)
    assert is_banded(
        load_network(section, spec.kind, dict(enumerate("abc")) if kind == "token" else None)[0]
    )


def test_other_networks_stay_as_they_are():
    network = tiny.t5("word")
    before = [type(module) for module in network.modules()]
    assert use_banded_attention(network) is network
    assert [type(module) for module in network.modules()] == before
