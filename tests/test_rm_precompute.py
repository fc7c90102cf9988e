"""What frozen layers compute of a reward model's inputs (reward_modeling/precompute.py)."""

import pytest
import torch
from test_rm_sharing import network, read_texts

from fgrlhf.models.top_layers import names_below
from fgrlhf.reward_models import networks
from fgrlhf.reward_models.networks import LanguageModelScorer, speed_up_network
from reward_modeling import precompute as module
from reward_modeling.precompute import bytes_of_states, precompute

DECODERS = ["gpt2", "llama"]


def trained_on_top(folder, family, kind="segment", feature=True):
    model = network(folder, family, kind, feature)
    model.train_top_layers(1, "n")
    assert model.has_frozen_layers
    return model


def loss_and_gradients(model, batch):
    logits = model(**batch).logits
    real = batch["response_mask"][..., None] if logits.dim() == 3 else 1
    loss = (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits) * real).sum()
    trained = [p for p in model.parameters() if p.requires_grad]
    return [loss, *torch.autograd.grad(loss, trained)]


@pytest.mark.parametrize("sizes", [(3, 3, 3), (4, 1, 2), (1, 1)])
@pytest.mark.parametrize("kind", ["segment", "sequence"])
@pytest.mark.parametrize("family", DECODERS)
def test_losses_and_gradients_stay_the_same(tmp_path, family, kind, sizes):
    model = trained_on_top(tmp_path, family, kind)
    inputs, read = read_texts(model, family, kind, sizes)
    expected = loss_and_gradients(model, inputs.collate(read))
    known = precompute(model, inputs, read, batch_tokens=60)
    assert all(x.lower is not None and x.features_TF is not None for x in known)
    for rows in (known, known[::-1]):
        batch = inputs.collate(rows)
        assert "lower" in batch
    results = loss_and_gradients(model, inputs.collate(known))
    for result, wanted in zip(results, expected, strict=True):
        scale = wanted.abs().max().clamp(min=1)
        torch.testing.assert_close(result / scale, wanted / scale, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_frozen_layers_give_what_all_layers_give(tmp_path, family):
    """The same weights, with every layer trained: the whole trunk runs, and the whole LM."""
    model = trained_on_top(tmp_path, family)
    inputs, read = read_texts(model, family, "segment", (3, 2))
    batch = inputs.collate(read)
    with torch.no_grad():
        expected = model(**batch).logits
        model.config.trained_layers = None  # the features still enter at the top layer
        torch.testing.assert_close(model(**batch).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_the_frozen_layers_do_not_run_again(tmp_path, family, monkeypatch):
    model = trained_on_top(tmp_path, family)
    inputs, read = read_texts(model, family, "segment", (3, 2))
    known = precompute(model, inputs, read)
    monkeypatch.setattr(networks, "lower_states", None)
    monkeypatch.setattr(networks, "hidden_states", None)
    batch = inputs.collate(known)
    del batch["features"]  # the language model continues from the same states
    with pytest.raises(TypeError):
        model(**inputs.collate(read))
    model(**batch)


def test_a_language_model_with_other_weights_runs_on_its_own(tmp_path):
    model = trained_on_top(tmp_path, "gpt2")
    below = names_below(model.trunk, 1)
    assert "wte.weight" in below and any(name.startswith("h.0.") for name in below)
    assert not any(name.startswith(("h.1.", "ln_f")) for name in below)
    assert model._lm_has_same_lower_layers
    other = trained_on_top(tmp_path, "gpt2")
    with torch.no_grad():
        other.lm.transformer.h[0].mlp.c_fc.bias[0] += 1
    assert not other._lm_has_same_lower_layers
    inputs, read = read_texts(other, "gpt2", "segment", (2,))
    batch = inputs.collate(read)
    with torch.no_grad():
        expected = other(**batch).logits
        other.config.trained_layers = None
        torch.testing.assert_close(other(**batch).logits, expected, atol=1e-5, rtol=1e-5)


def test_which_parameters_are_trained_is_not_changed(tmp_path):
    model = trained_on_top(tmp_path, "llama")
    trained = [p.requires_grad for p in model.trunk.parameters()]
    names_below(model.trunk, 1)
    assert [p.requires_grad for p in model.trunk.parameters()] == trained


def test_states_beyond_the_capacity_are_not_kept(tmp_path, monkeypatch):
    model = trained_on_top(tmp_path, "gpt2")
    inputs, read = read_texts(model, "gpt2", "segment", (3, 3))
    prompts = {x.prompt for x in read}
    tokens = sum(map(len, prompts)) + sum(len(x.input_ids) - len(x.prompt) for x in read)
    size = bytes_of_states(model, read)
    assert size == tokens * model.trunk.config.hidden_size * 4
    monkeypatch.setattr(module, "CAPACITY", size)
    known = precompute(model, inputs, read)
    kept = {id(x.lower.prompt_PD): x.lower.prompt_PD.nbytes for x in known}
    assert sum(kept.values()) + sum(x.lower.response_TD.nbytes for x in known) == size
    monkeypatch.setattr(module, "CAPACITY", size - 1)
    assert all(
        x.lower is None and x.features_TF is not None for x in precompute(model, inputs, read)
    )


def test_networks_without_frozen_layers(tmp_path):
    model = network(tmp_path, "gpt2")
    inputs, read = read_texts(model, "gpt2", "segment", (2,))
    assert precompute(model, inputs, read) == read
    assert precompute(torch.nn.Linear(1, 1), inputs, read) == read
    t5 = network(tmp_path, "t5", feature=True)
    t5.train_top_layers(1, "n")
    assert not t5.has_frozen_layers  # its encoder's states are shared by the rows of a prompt


@torch.no_grad()
def test_a_loaded_model_continues_from_its_frozen_layers(tmp_path, monkeypatch):
    trained = trained_on_top(tmp_path, "llama")
    trained.save_pretrained(tmp_path / "saved")
    loaded = speed_up_network(LanguageModelScorer.from_pretrained(tmp_path / "saved")).eval()
    loaded.requires_grad_(False)
    assert loaded.has_frozen_layers and loaded._lm_has_same_lower_layers
    inputs, read = read_texts(loaded, "llama", "segment", (3, 2))
    batch = inputs.collate(read)
    torch.testing.assert_close(loaded(**batch).logits, trained(**batch).logits)
