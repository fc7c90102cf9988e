"""Attention in blocks has the stock Longformer's outputs and gradients, and a dense attention's
with a mask.
"""

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

from fgrlhf.kernels.longformer import (
    BandedLongformer,
    BandedSelfAttention,
    banded_attention,
    use_banded_attention,
)
from fgrlhf.reward_models.scoring import RewardModelSpec, load_reward_model
from reward_modeling.training import ModelSection, load_network

VOCABULARY = 50
KINDS = {"token": LongformerForTokenClassification, "sequence": LongformerForSequenceClassification}
LENGTHS = (1, 3, 4, 5, 8, 9, 12, 13, 16, 31, 40)  # one side of the window is 4


def pair(kind: str, dropout: float = 0.0, **changes) -> tuple[nn.Module, nn.Module]:
    """A stock model and the same in blocks. Weights are large: scores differ, so every key
    matters.
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
    """Three rows. padding: of the rows' ends, or holes anywhere. marks: which tokens are global."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(2, VOCABULARY, (3, length), generator=generator)
    mask = torch.ones_like(ids)
    if padding == "ends":
        for row, cut in ((1, length // 3), (2, length - 1)):  # the last row keeps one token
            mask[row, length - cut :] = 0
    elif padding == "holes":
        mask = (torch.rand(3, length, generator=generator) < 0.6).long()
        mask[:, 0] = 1
    given = {"input_ids": ids * mask, "attention_mask": mask}
    if (
        marks == "many"
    ):  # another number of them in every row, none in the last; some of them on padding
        given["global_attention_mask"] = (torch.rand(3, length, generator=generator) < 0.3).long()
        given["global_attention_mask"][2] = 0
    return given


def run(model: nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Logits, every layer's hidden states on real tokens and padding, every parameter's
    gradient.
    """
    model.zero_grad()
    output = model(**given, output_hidden_states=True)
    weights = torch.linspace(-1, 1, output.logits.numel()).view_as(output.logits)
    (output.logits * weights).sum().backward()
    states = {f"hidden {i}": state for i, state in enumerate(output.hidden_states)}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"logits": output.logits, **states, **gradients}


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, name: str = "") -> None:
    """To 1e-5; where numbers above one were added up, to 1e-5 of the largest."""
    tolerance = 1e-5 * max(1.0, float(theirs.detach().abs().max()))
    torch.testing.assert_close(
        ours, theirs, rtol=0, atol=tolerance, msg=lambda text: f"{name}: {text}"
    )


def assert_same(
    banded: dict[str, torch.Tensor | None], stock: dict[str, torch.Tensor | None]
) -> None:
    """A gradient is None where nothing reached the parameter: DDP minds, so that must agree too."""
    assert {name for name in stock if stock[name] is None} == {
        name for name in banded if banded[name] is None
    }
    for name, tensor in stock.items():
        if tensor is not None:
            assert_near(banded[name], tensor, name)


# ---- the stock model's numbers -------------------------------------------------------------------


@pytest.mark.parametrize("marks", ["default", "many"])
@pytest.mark.parametrize("padding", ["none", "ends", "holes"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_the_stock_models(kind, padding, marks):
    stock, banded = pair(kind)
    for length in LENGTHS:
        given = batch(length, padding, marks)
        assert_same(run(banded, given), run(stock, given))


@pytest.mark.parametrize("window", [4, [4, 16], 64])
@pytest.mark.parametrize("kind", KINDS)
def test_other_windows_and_one_for_each_layer(kind, window):
    stock, banded = pair(kind, attention_window=window)
    for length in (7, 33):
        given = batch(length, "ends")
        assert_same(run(banded, given), run(stock, given))


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
def test_in_bf16_it_is_as_near_to_fp32_as_stock_is(kind):
    stock, banded = pair(kind)
    given = batch(31, "ends")
    exact = stock(**given).logits

    def error(model, **options):
        with torch.autocast("cpu", torch.bfloat16, **options):
            logits = model(**given).logits
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
    more_key, more_value = torch.randn(2, 2, 3, G, 5, dtype=torch.float64).unbind()
    closed, more_closed = torch.rand(2, length) < 0.3, torch.rand(2, G) < 0.3
    closed[:, ::window] = False  # so every query may read something
    distance = torch.arange(length)[:, None] - torch.arange(length)
    masked = (distance.abs() > window) | closed[:, None, None]
    masked = torch.cat(
        [more_closed[:, None, None].expand(2, 1, length, G), masked.expand(2, 1, -1, -1)], 3
    )
    scores = query @ torch.cat([more_key, key], 2).mT / 5**0.5
    dense = torch.softmax(scores.masked_fill(masked, -torch.inf), -1) @ torch.cat(
        [more_value, value], 2
    )
    global_kv = (more_key, more_value, more_closed) if G else None
    blocks = banded_attention(query, key, value, window, closed, global_kv)
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
    given = {
        name: x[1].repeat(n, 1) for name, x in row.items() if name != "input_ids"
    }  # a row many times
    read = given["attention_mask"] * (given.get("global_attention_mask", 0) + 1)
    hidden = torch.randn(1, 16, 32).repeat(n, 1, 1)

    def moments(layer):
        with torch.no_grad():
            output = layer(hidden, read - 1, read == 0, read == 2, bool((read == 2).any()))[0]
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


# ---- where it is plugged in ----------------------------------------------------------------------


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
    given = batch(17, "ends")
    assert_same(run(again, given), run(stock, given))


@pytest.mark.parametrize("kind", KINDS)
def test_reward_models_in_use_and_in_training_have_it(tmp_path: Path, kind):
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
    section = ModelSection(ckpt=str(tmp_path), max_length=64)
    assert is_banded(
        load_network(section, spec.kind, dict(enumerate("abc")) if kind == "token" else None)[0]
    )


def test_other_networks_stay_as_they_are():
    network = tiny.t5("word")
    before = [type(module) for module in network.modules()]
    assert use_banded_attention(network) is network
    assert [type(module) for module in network.modules()] == before
