"""Layers in 4 bits (QLoRA) and 8-bit AdamW; `make test-quantize` installs what these tests need."""

import copy
import json
import sys

import pytest
import rm_helpers as rm
import test_rm_lora as rm_lora
import tiny
import torch
from rl_helpers import config, metrics, trainer
from test_checkpoint import assert_same_run
from test_dpo import config as dpo_config
from test_dpo import trainer as dpo_trainer
from test_lora import logprobs
from test_policy import sampled
from test_run_sft import config as sft_config
from test_run_sft import train as train_sft
from test_run_sft import world  # noqa: F401  # a fixture
from torch import nn

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import LoRAConfig
from fgrlhf.models.lora import AdapterFree, merged_weights
from fgrlhf.models.quantized import QuantizedLinear
from fgrlhf.policy import load_policy
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.runs import checkpoint
from fgrlhf.runs.optimizer import make_optimizer

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: make test-quantize")

QLORA = LoRAConfig(r=2, alpha=8.0, quantize="nf4")
KINDS = ["t5", "flan", "bart", "llama", "neox"]
# Appendix E of the paper: the quantiles of a normal distribution, scaled to [-1, 1], with a 0
NF4 = [
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
]  # fmt: skip


def layer(inputs: int = 128, outputs: int = 48, bias: bool = True) -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(inputs, outputs, bias=bias)


def quantized_layers(module: nn.Module) -> dict[str, QuantizedLinear]:
    return {n: m for n, m in module.named_modules() if isinstance(m, QuantizedLinear)}


# ---- a layer -------------------------------------------------------------------------------------


def test_weights_are_those_of_the_paper():
    plain = layer()
    blocks_N64 = plain.weight.detach().reshape(-1, 64)
    largest_N1 = blocks_N64.abs().amax(1, keepdim=True)
    values_16 = torch.tensor(NF4)
    nearest_N64 = (blocks_N64 / largest_N1)[..., None].sub(values_16).abs().argmin(-1)
    expected_N64 = values_16[nearest_N64] * largest_N1
    got_N64 = QuantizedLinear(plain).dequantized().reshape(-1, 64)
    # the scales of the blocks are themselves stored in 8 bits
    assert float(((got_N64 - expected_N64) / largest_N1).abs().max()) < 0.02


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_with_the_weights_it_returns(bias):
    plain = layer(bias=bias)
    small = QuantizedLinear(plain)
    x = torch.randn(3, 5, 128, requires_grad=True)
    y = small(x)
    expected = nn.functional.linear(x, small.dequantized(), plain.bias)
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=1e-5)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(small(x), expected, atol=1e-6, rtol=1e-5)


def test_a_weight_takes_half_a_byte():
    small = QuantizedLinear(layer(512, 512))
    state = small.quant_state
    statistics = [state.absmax, state.state2.absmax]
    stored = small.weight.nbytes + sum(x.nbytes for x in statistics)
    assert stored * 8 / 512**2 == pytest.approx(4 + 8 / 64 + 32 / (64 * 256))
    assert not small.weight.requires_grad


def test_under_autocast_a_layer_computes_in_that_precision():
    small = QuantizedLinear(layer())
    x = torch.randn(4, 128)
    with torch.autocast("cpu", torch.bfloat16):
        y = small(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), small(x), atol=0.05, rtol=0.05)


def test_a_copy_computes_the_same():
    small = QuantizedLinear(layer())
    x = torch.randn(4, 128)
    assert torch.equal(copy.deepcopy(small)(x), small(x))


# ---- a policy ------------------------------------------------------------------------------------


def adapted(kind: str, trained: bool = True):
    policy = tiny.policy(kind, lora=QLORA).eval()
    torch.manual_seed(3)
    for name, parameter in policy.named_parameters():
        if trained and ".lora_B." in name:
            nn.init.normal_(parameter, std=0.1)
    return policy


@pytest.mark.parametrize("kind", KINDS)
def test_the_saved_policy_is_the_trained_one(kind, tmp_path):
    policy = adapted(kind)
    assert len(quantized_layers(policy)) >= 6
    batch = sampled(policy)
    policy.save(tmp_path / "merged")
    loaded = load_policy(tmp_path / "merged").eval()
    assert not quantized_layers(loaded)
    torch.testing.assert_close(logprobs(loaded, batch), logprobs(policy, batch), atol=1e-5, rtol=0)
    original = tiny.policy(kind).model.state_dict()
    merged = merged_weights(policy.model)
    assert {n: x.shape for n, x in merged.items()} == {n: x.shape for n, x in original.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_new_adapters_change_nothing_and_only_they_are_trained(kind):
    policy = adapted(kind, trained=False)
    batch = sampled(policy)
    reference = AdapterFree(policy)
    assert torch.equal(logprobs(policy, batch), logprobs(reference, batch))
    assert {n for n, p in policy.named_parameters() if p.requires_grad} == {
        n for n, _ in policy.named_parameters() if ".lora_" in n
    }
    policy(*batch)[0].logprobs_BT.sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in policy.parameters())


def test_layers_below_the_trained_ones_are_quantised_too(tmp_path):
    tiny.policy("llama").save(tmp_path)
    policy = load_policy(tmp_path, lora=QLORA, top_layers=1)
    layers = {name for name in quantized_layers(policy) if name.endswith("q_proj")}
    assert layers == {"model.model.layers.0.self_attn.q_proj"}  # without an adapter
    with_adapter = {name for name in quantized_layers(policy) if "q_proj.base_layer" in name}
    assert with_adapter == {"model.model.layers.1.self_attn.q_proj.base_layer"}


def test_models_with_transposed_weights_are_refused():
    with pytest.raises(UserError, match="lora.quantize cannot store .* GPT2LMHeadModel in 4 bits"):
        tiny.policy("gpt2", lora=QLORA)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match="lora.quantize needs the package bitsandbytes"):
        tiny.policy("llama", lora=QLORA)
    with pytest.raises(UserError, match="train.optimizer=adamw_8bit needs the package"):
        make_optimizer("adamw_8bit", nn.Linear(2, 2), [], 1e-8)


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_rl_learns_and_checkpoints_hold_only_adapters(kind, tmp_path):
    settings = {"train__lr": 2e-2, "train__total_episodes": 320, "algorithm__kl__coef": 0.01}
    run = trainer(config(tmp_path, **settings), kind, lora=QLORA)
    run.train()
    rows = metrics(tmp_path)
    assert abs(rows[0]["kl"]) < 1e-6
    values = [row["reward/total"] for row in rows]
    if kind == "llama":  # this T5 learns too slowly with adapters, in 4 bits or not
        assert sum(values[-8:]) / 8 > sum(values[:8]) / 8 + 0.2
    (folder,) = (tmp_path / "checkpoints").iterdir()
    saved = checkpoint.load_file(str(folder / "model.safetensors"))
    assert all(".lora_" in name for name in saved if name.startswith("policy."))
    final = load_policy(tmp_path / "final").eval()
    batch = sampled(run.policy.eval())
    torch.testing.assert_close(
        logprobs(final, batch), logprobs(run.policy, batch), atol=1e-5, rtol=0
    )


def evaluate(policy):
    return {"reward": sum(p.double().sum().item() for p in policy.parameters()), "kl": 0.0}


def test_two_halves_are_one_whole(tmp_path):
    """With an 8-bit optimiser and adapters that are large enough for it."""
    lora = LoRAConfig(r=128, quantize="nf4")
    changes = {
        "train__optimizer": "adamw_8bit",
        "train__save_every_steps": 2,
        "evaluation__every_steps": 3,
    }

    def make(name):
        cfg = config(tmp_path / name, **changes)
        return trainer(cfg, "llama", evaluate=evaluate, lora=lora)

    straight = make("whole")
    straight.train()
    make("half").train(until=4)
    resumed = make("half")
    resumed.train()
    assert_same_run(resumed, tmp_path / "half", straight, tmp_path / "whole")
    state = [x for entry in straight.optimizer.state.values() for x in entry.values()]
    assert any(torch.is_tensor(x) and x.dtype == torch.uint8 for x in state)


def test_dpo_with_both(tmp_path):
    run = dpo_trainer(dpo_config(tmp_path, train__optimizer="adamw_8bit"), "llama", lora=QLORA)
    run.train()
    assert run.step == run.total_steps and quantized_layers(run.policy)


def test_sft_with_both(world):  # noqa: F811
    tiny.policy("llama").save(world / "base")
    options = ["model.lora={r: 4, quantize: nf4}", "train.max_steps=20"]
    folder = train_sft(sft_config(world, *options, "train.optimizer=adamw_8bit"))
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0]
    assert not quantized_layers(load_policy(folder))


@pytest.mark.parametrize("kind, shape", [("segment", "encoder"), ("sequence", "seq2seq")])
def test_reward_models_with_both(kind, shape, tmp_path, monkeypatch):
    trainers = []
    install = rm_lora.training.install_model

    def remember(trainer, *arguments):
        trainers.append(trainer)
        install(trainer, *arguments)

    monkeypatch.setattr(rm_lora.training, "install_model", remember)
    _, program = rm_lora.MODULES[kind]
    settings = rm_lora.config(
        kind, tmp_path, shape, rm_lora.LORA | {"quantize": "nf4"}, train__optimizer="adamw_8bit"
    )
    scorer = load_reward_model(program.train(settings), rm.prefix_fn)
    network = trainers[0].model.eval()
    assert quantized_layers(network) and not quantized_layers(scorer.model)
    with_adapters = type(scorer)(network, scorer.inputs.tokenizer, scorer.spec, rm.prefix_fn)
    for merged, expected in zip(rm_lora.logits(scorer), rm_lora.logits(with_adapters), strict=True):
        torch.testing.assert_close(merged, expected, atol=1e-5, rtol=0)


# ---- the optimiser -------------------------------------------------------------------------------


def test_an_8_bit_step_is_close_to_a_32_bit_one():
    torch.manual_seed(0)
    gradients = [torch.randn(128, 64) for _ in range(20)]
    results = []
    for name in ("adamw", "adamw_8bit"):
        weight = nn.Parameter(torch.zeros(128, 64))
        optimizer = make_optimizer(name, nn.Module(), [{"params": [weight], "lr": 1e-3}], 1e-8)
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        results.append(weight.detach())
        state = optimizer.state[weight]
    assert state["state1"].dtype == state["state2"].dtype == torch.uint8
    plain, small = results
    assert float((plain - small).norm() / plain.norm()) < 0.05


def test_embeddings_keep_a_32_bit_state():
    model = nn.ModuleDict({"words": nn.Embedding(128, 64), "layer": nn.Linear(64, 128)})
    groups = [{"params": list(model.parameters()), "lr": 1e-3}]
    optimizer = make_optimizer("adamw_8bit", model, groups, 1e-8)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {name: optimizer.state[p]["state1"].dtype for name, p in model.named_parameters()}
    assert state["words.weight"] == torch.float32
    assert state["layer.weight"] == torch.uint8
    assert state["layer.bias"] == torch.float32  # fewer than 4,096 entries


def test_settings_that_fsdp2_does_not_support_are_refused(tmp_path):
    with pytest.raises(UserError, match="does not support train.optimizer=adamw_8bit"):
        config(tmp_path, train__optimizer="adamw_8bit", parallel__strategy="fsdp2")
