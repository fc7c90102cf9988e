"""The table of docs/scale.md: its sums are those of real trainers, its models have their sizes."""

from pathlib import Path

import pytest
from rl_helpers import config, trainer

from benchmarks import memory
from benchmarks.memory import Weights
from fgrlhf.models.lora import AdapterFree


@pytest.mark.parametrize(
    "name, weights",
    [
        ("t5-large", 737_668_096),
        ("Qwen3-0.6B", 596_049_920),
        ("Qwen3-1.7B", 1_720_574_976),
        ("Qwen2.5-7B", 7_615_616_512),
    ],
)
def test_models_have_their_published_sizes(name, weights):
    assert Weights.of(memory.MODELS[name]).model == weights


def test_adapters_by_hand():
    """An adapter of a layer (out, in) has r (out + in) weights."""
    query_and_output = 2 * (2048 + 1024)
    key_and_value = 2 * (1024 + 1024)
    gate_up_down = 3 * (3072 + 1024)
    per_layer = memory.LORA.r * (query_and_output + key_and_value + gate_up_down)
    assert Weights.of(memory.MODELS["Qwen3-0.6B"]).adapters == 28 * per_layer


def bytes_held(run) -> int:
    """Weights of policy and reference, gradients of what is trained, and Adam's moments."""
    parts = [run.actor_critic.policy]
    if not isinstance(run.reference, AdapterFree):
        parts.append(run.reference)
    weights = sum(p.nbytes for part in parts for p in part.parameters())
    gradients = sum(p.nbytes for p in run.actor_critic.policy.parameters() if p.requires_grad)
    moments = 0
    for state in run.optimizer.state.values():
        moments += state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes
    return weights + gradients + moments


@pytest.mark.parametrize("kind", ["t5", "llama"])
@pytest.mark.parametrize("lora", [None, memory.LORA])
def test_the_sums_are_those_of_a_trainer(kind, lora, tmp_path):
    settings = config(tmp_path, algorithm__name="grpo", train__total_episodes=8)
    run = trainer(settings, kind, lora=lora)
    run.train()
    weights = Weights.of(run.actor_critic.policy.model.config)
    static = memory.with_all_weights if lora is None else memory.with_lora
    assert bytes_held(run) == static(weights)


def test_quantised_layers_by_hand():
    """All linear layers but the output layer; not T5's `wo`, which stays in fp32."""
    query_and_output = 2 * 2048 * 1024
    key_and_value = 2 * 1024 * 1024
    gate_up_down = 3 * 3072 * 1024
    per_layer = query_and_output + key_and_value + gate_up_down
    assert Weights.of(memory.MODELS["Qwen3-0.6B"]).quantized == 28 * per_layer
    attention = 4 * 1024 * 1024
    wi = 4096 * 1024
    assert Weights.of(memory.MODELS["t5-large"]).quantized == 24 * (3 * attention + 2 * wi)


def test_a_row_by_hand(monkeypatch):
    small = Weights(model=1_000_000_000, adapters=10_000_000, quantized=800_000_000)
    monkeypatch.setattr(memory.Weights, "of", lambda config: small)
    monkeypatch.setattr(memory, "MODELS", {"small": None})
    row = memory.memory_table().splitlines()[-1]
    # QLoRA: 0.8 * 0.516 + 0.2 * (4 + 2) + 0.16; LoRA: 4 + 0.16 + 2; all: 16 + 4 + 2;
    # over 8 and 16 GPUs: 20 / 8 + 4 and 20 / 16 + 4
    assert row == "| small | 1,000 M | 1.8 | 6.2 | 22.0 | 6.5 | 5.2 |"


def test_the_document_has_this_table():
    document = Path(__file__).parents[1] / "docs" / "scale.md"
    assert memory.memory_table() in document.read_text()
