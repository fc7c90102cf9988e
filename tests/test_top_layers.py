"""Which parameters `train_top_layers` freezes, and that the others learn as before."""

import pytest
import tiny
import torch
from transformers import GPT2Model

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.models.top_layers import count_layers, layers_of, train_top_layers

FAMILIES = ("t5", "gpt2", "llama", "neox", "bart", "flan")
KEY = "model.train_top_layers"


def trained_names(model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def outputs(policy) -> torch.Tensor:
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    hidden = policy.hidden(ids, torch.ones_like(ids), ids, torch.ones_like(ids))
    return (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum()


def test_names_in_a_gpt2():
    model = tiny.gpt2().model
    result = train_top_layers(model, 1, KEY)
    trained = trained_names(model)
    assert {name.split(".")[1] for name in trained} == {"h", "ln_f"}
    assert all(name.startswith(("transformer.h.1.", "transformer.ln_f.")) for name in trained)
    assert (result.trained, result.total) == (1, 2)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert result.frozen_parameters == frozen > 0
    assert "the top 1 of 2 layers are trained" in result.describe()


def test_names_in_a_t5():
    """Its decoder is above its encoder; the position bias belongs to the lowest decoder layer."""
    one = tiny.t5().model
    train_top_layers(one, 1, KEY)
    allowed = ("decoder.block.1.", "decoder.final_layer_norm.")
    assert all(name.startswith(allowed) for name in trained_names(one))
    two = tiny.t5().model
    train_top_layers(two, 2, KEY)
    assert all(name.startswith("decoder.") for name in trained_names(two))
    bias = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert bias in trained_names(two) and bias not in trained_names(one)
    three = tiny.t5().model
    train_top_layers(three, 3, KEY)
    added = trained_names(three) - trained_names(two)
    allowed = ("encoder.block.1.", "encoder.final_layer_norm.")
    assert added and all(name.startswith(allowed) for name in added)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_freeze_nothing(family):
    model = tiny.policy(family).model
    before = trained_names(model)
    total = count_layers(model)
    assert train_top_layers(model, total, KEY).frozen_parameters == 0
    assert trained_names(model) == before


@pytest.mark.parametrize(
    "family, n",
    [(family, 1) for family in FAMILIES] + [("t5", 2), ("t5", 3), ("bart", 2), ("bart", 3)],
)
def test_trained_parameters_have_their_usual_gradient(family, n):
    """No gradient flows into the lower layers, and that of the upper ones does not change."""
    whole, part = tiny.policy(family).eval(), tiny.policy(family).eval()
    train_top_layers(part.model, n, KEY)
    for policy in (whole, part):
        outputs(policy).backward()
    gradients = dict(whole.model.named_parameters())
    for name, parameter in part.model.named_parameters():
        if parameter.requires_grad and gradients[name].grad is not None:
            torch.testing.assert_close(parameter.grad, gradients[name].grad)
        else:
            assert parameter.grad is None
    trained = trained_names(part.model)
    assert any(gradients[name].grad is not None for name in trained)


def test_freezing_draws_no_random_number_and_keeps_the_mode():
    model = tiny.t5(dropout=0.1).model.train()
    state = torch.get_rng_state()
    train_top_layers(model, 1, KEY)
    assert model.training and torch.equal(state, torch.get_rng_state())


def test_adapters_below_are_frozen():
    model = tiny.policy("gpt2", LoRAConfig(r=2)).model
    train_top_layers(model, 1, KEY)
    trained = trained_names(model)
    assert trained and all(".h.1." in name and ".lora_" in name for name in trained)


def test_too_many_layers_are_refused():
    with pytest.raises(UserError, match=r"model.train_top_layers=3, but the model has only 2"):
        train_top_layers(tiny.gpt2().model, 3, KEY)


def test_layers_of_a_part_of_a_model():
    trunk = tiny.gpt2().model.base_model
    assert isinstance(trunk, GPT2Model) and layers_of(trunk) is trunk.h
    train_top_layers(trunk, 1, KEY)
    assert {name.split(".")[0] for name in trained_names(trunk)} == {"h", "ln_f"}
