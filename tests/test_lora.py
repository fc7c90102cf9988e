import copy

import families
import pytest
import tiny
import torch
from peft import PeftModel
from rl_helpers import config, metrics, trainer
from rounding import assert_equal_up_to_rounding
from test_policy import TEXTS, logprobs_and_gradient, sampled
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.configs.sections import LoRAConfig, Sampling
from fgrlhf.models.lora import (
    AdapterFree,
    adapters_off,
    has_adapters,
    merged_weights,
    names_under_adapters,
)
from fgrlhf.policy import load_policy
from fgrlhf.runs import checkpoint
from fgrlhf.value import ActorCritic, Value

KINDS = ["t5", "flan", "bart", "gpt2", "llama", "neox"]
LORA = LoRAConfig(r=2, alpha=8.0)


def adapted(kind, trained=True, settings=LORA, **kwargs):
    """A policy with adapters; unless `trained` is False, they change its results."""
    policy = tiny.policy(kind, lora=settings, **kwargs).eval()
    torch.manual_seed(3)
    for name, parameter in policy.named_parameters():
        if trained and ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return policy


def logprobs(policy, batch):
    with torch.no_grad():
        return policy(*batch)[0].logprobs_BT


@pytest.mark.parametrize("kind", KINDS)
def test_new_adapters_change_nothing_and_only_they_are_trained(kind):
    plain, policy = tiny.policy(kind).eval(), adapted(kind, trained=False)
    batch = sampled(plain)
    assert torch.equal(logprobs(policy, batch), logprobs(plain, batch))
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert trained and all(".lora_" in name for name in trained)
    assert sum(p.numel() for p in policy.parameters() if not p.requires_grad) == sum(
        p.numel() for p in plain.parameters()
    )
    policy(*batch)[0].logprobs_BT.sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in policy.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_computes_the_equation(kind):
    """Check y = W x + (alpha / r) B A x, computed by hand in an ordinary model."""
    policy = adapted(kind)
    plain = tiny.policy(kind).eval()
    batch = sampled(plain)
    weights = dict(plain.model.named_parameters())
    adapters = dict(policy.model.named_parameters())
    suffix = ".lora_A.default.weight"
    layers = [name.removesuffix(suffix) for name in adapters if name.endswith(suffix)]
    for name in layers:
        a = adapters[f"{name}.lora_A.default.weight"]
        b = adapters[f"{name}.lora_B.default.weight"]
        delta = 8.0 / 2 * b @ a
        weights[f"{name}.weight"].data += delta.T if kind == "gpt2" else delta
    assert len(layers) >= 8
    torch.testing.assert_close(logprobs(policy, batch), logprobs(plain, batch), atol=1e-5, rtol=0)
    assert not torch.allclose(
        logprobs(plain, batch), logprobs(tiny.policy(kind).eval(), batch), atol=1e-2
    )


@pytest.mark.parametrize("kind", KINDS)
def test_peft_reads_the_saved_adapter(kind, tmp_path):
    """On the model from which training started, it computes what the merged folder does."""
    tiny.policy(kind).save(tmp_path / "base")
    with torch.random.fork_rng():
        policy = load_policy(tmp_path / "base", lora=LORA)
    torch.manual_seed(3)
    for name, parameter in policy.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    policy.save(tmp_path / "best")
    folder = tmp_path / "best" / "adapter"
    names = {file.name for file in folder.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    settings = read_json(folder / "adapter_config.json")
    assert settings["base_model_name_or_path"] == str(tmp_path / "base")
    assert settings["target_modules"] == sorted(settings["target_modules"])
    assert len(settings["target_modules"]) < 12  # one name for all layers, such as `q_proj`
    auto = AutoModelForCausalLM if policy.default_padding_side == "left" else AutoModelForSeq2SeqLM
    base = auto.from_pretrained(tmp_path / "base")
    theirs = PeftModel.from_pretrained(base, str(folder)).eval()
    merged = auto.from_pretrained(tmp_path / "best").eval()
    ids_1L = torch.arange(1, 12)[None]
    inputs = {"input_ids": ids_1L}
    if policy.model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids_1L.flip(1)
    with torch.no_grad():
        logits = theirs(**inputs).logits
        torch.testing.assert_close(logits, merged(**inputs).logits, atol=1e-5, rtol=1e-5)
        with theirs.disable_adapter():
            assert (theirs(**inputs).logits - logits).abs().max() > 1e-2
    # and it is a start again
    batch = sampled(policy.eval())
    for start in (folder, tmp_path / "best"):
        found = logprobs(load_policy(start).eval(), batch)
        torch.testing.assert_close(found, logprobs(policy, batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_shared_prompts_and_decoding_are_exact_under_adapters(kind, monkeypatch):
    policy = adapted(kind)
    policy.model.generation_config.eos_token_id = [1, 5, 10, 15, 20]
    batch = sampled(policy, num_samples=4)
    prompt = policy.encode(TEXTS)
    response = policy.generate(*prompt, Sampling(7), list(range(12)), 4)
    rows = [x.repeat_interleave(4, 0) for x in prompt]
    torch.testing.assert_close(
        response.logprobs_BT,
        logprobs(policy, (*rows, response.ids_BT, response.mask_BT)),
        atol=1e-5,
        rtol=0,
    )
    shared = logprobs_and_gradient(policy, batch)
    monkeypatch.setattr("fgrlhf.models.encoder_decoder.uniform_group_size", lambda group_B: None)
    monkeypatch.setattr("fgrlhf.models.causal.uniform_group_size", lambda group_B: None)
    for actual, expected in zip(logprobs_and_gradient(policy, batch), shared):
        assert_equal_up_to_rounding(actual, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_the_policy_without_adapters(kind):
    # the policy has dropout, its reference does not
    dropout = {"dropout": 0.5} if kind in ("t5", "gpt2", "bart") else {}
    plain, policy = tiny.policy(kind), adapted(kind, **dropout)
    batch = sampled(plain.eval())
    reference = AdapterFree(policy)
    trainable = {name for name, p in policy.named_parameters() if p.requires_grad}
    policy.train()
    reference.to("cpu").eval().requires_grad_(False)
    reference_logprobs = logprobs(reference, batch)
    assert torch.equal(reference_logprobs, logprobs(plain, batch))
    assert list(reference.parameters()) == [] and policy.training
    assert {name for name, p in policy.named_parameters() if p.requires_grad} == trainable
    assert not torch.allclose(logprobs(policy.eval(), batch), reference_logprobs, atol=1e-3)
    with pytest.raises(RuntimeError), adapters_off(policy):
        raise RuntimeError
    # after an error the adapters are on again
    assert not torch.allclose(logprobs(policy, batch), reference_logprobs, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_policy_is_an_ordinary_one_with_the_adapters_merged(kind, tmp_path):
    policy = adapted(kind)
    batch, before = sampled(policy), copy.deepcopy(policy.state_dict())
    policy.save(tmp_path / "merged")
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())
    loaded = load_policy(tmp_path / "merged").eval()
    assert not has_adapters(loaded.model) and type(loaded.model) is type(policy.model)
    assert not [path for path in (tmp_path / "merged").iterdir() if path.suffix in (".bin", ".pt")]
    torch.testing.assert_close(logprobs(loaded, batch), logprobs(policy, batch), atol=1e-5, rtol=0)
    again = load_policy(tmp_path / "merged", lora=LORA).eval()
    assert torch.equal(logprobs(again, batch), logprobs(loaded, batch))
    assert merged_weights(policy.model).keys() == tiny.policy(kind).model.state_dict().keys()


@pytest.mark.parametrize(
    "family, layers",
    [
        ("deepseek-v3", ["layers.0.mlp.gate_proj", "layers.1.mlp.shared_experts.gate_proj"]),
        ("qwen3-moe", ["layers.0.mlp.gate_proj"]),
        ("phimoe", []),
        ("falcon", ["h.0.mlp.dense_h_to_4h"]),
        ("gemma3n", ["altup_projections.0", "layers.1.mlp.gate_proj"]),
        ("ctrl", ["h.0.ffn.0", "h.1.ffn.2"]),
        ("switch", ["encoder.block.0.layer.0.SelfAttention.q"]),
        ("jamba", ["layers.0.mamba.x_proj", "layers.0.feed_forward.gate_proj"]),
    ],
)
def test_adapters_of_families_with_layers_of_their_own(family, layers, tmp_path):
    """Layers in a list, whose names end in a number, get adapters.

    Experts whose weights are one tensor, routers, and layers that are read without being called
    (Jamba's `dt_proj`) get none. So all adapters have gradients, which DDP needs.
    """
    families.save(family, tmp_path / "start")
    policy = load_policy(tmp_path / "start", lora=LORA).eval()
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in trained)
    adapted_layers = {name.partition(".lora_")[0] for name in trained}
    without = (".experts", ".router", ".gate", ".router.classifier", ".dt_proj")
    assert not any(name.endswith(without) for name in adapted_layers)
    for layer in layers:
        assert any(name.endswith(layer) for name in adapted_layers), layer
    for name, parameter in policy.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    batch = sampled(policy)
    policy.train()(*batch)[0].logprobs_BT.sum().backward()
    assert all(p.grad is not None for p in policy.parameters() if p.requires_grad)
    policy.eval().save(tmp_path / "merged")
    merged = load_policy(tmp_path / "merged").eval()
    torch.testing.assert_close(logprobs(merged, batch), logprobs(policy, batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["t5", "bart", "llama"])
@pytest.mark.parametrize("own", [True, False])
def test_critics_of_a_policy_with_adapters(kind, own):
    policy = adapted(kind)
    trunk = tiny.policy(kind, seed=1) if own else None
    model = ActorCritic(policy, Value(policy.hidden_size, trunk))
    torch.nn.init.normal_(model.value.head.layers[-1].weight)
    model(*sampled(policy)).values_BT.sum().backward()
    reached = {
        name
        for name, p in model.named_parameters()
        if p.grad is not None and p.grad.abs().sum() > 0
    }
    assert any(name.startswith("policy.") for name in reached) != own
    assert any(name.startswith("value.trunk.") for name in reached) == own
    assert "value.head.layers.2.weight" in reached
    assert all(".lora_" in name for name in reached if name.startswith("policy."))
    unchanged = names_under_adapters(model)
    assert unchanged and all(name.startswith("policy.model.") for name in unchanged)
    assert not any(".lora_" in name for name in unchanged)


def test_only_named_layers_get_adapters_and_unknown_names_are_refused(tmp_path):
    policy = tiny.policy("llama", lora=LoRAConfig(target_modules=["q_proj", "v_proj"]))
    layers = {name.split(".")[-4] for name, _ in policy.named_parameters() if "lora_A" in name}
    assert layers == {"q_proj", "v_proj"}
    tiny.policy("t5").save(tmp_path / "t5")
    with pytest.raises(
        UserError,
        match=(
            "target_modules names `q_proj`.*T5ForConditionalGeneration has these: k, o, q, v, wi,"
            " wo.*leave"
        ),
    ):
        load_policy(tmp_path / "t5", lora=LoRAConfig(target_modules=["q_proj", "v"]), empty=True)
    with pytest.raises(UserError, match="`lm_head`.*other than the output"):
        load_policy(tmp_path / "t5", lora=LoRAConfig(target_modules=["lm_head"]), empty=True)


def test_errors_in_settings_are_found_without_reading_weights(tmp_path):
    tiny.policy("llama").save(tmp_path / "p")
    (tmp_path / "p" / "model.safetensors").unlink()
    empty = load_policy(tmp_path / "p", lora=LORA, empty=True)
    assert all(p.is_meta for p in empty.model.parameters() if p.dim() > 1)
    with pytest.raises(UserError, match="target_modules"):
        load_policy(tmp_path / "p", lora=LoRAConfig(target_modules=["x"]), empty=True)


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_training_changes_only_adapters_and_checkpoints_hold_nothing_else(kind, tmp_path):
    run = trainer(config(tmp_path, train__lr=1e-2), kind, lora=LORA)
    before = copy.deepcopy(run.policy.state_dict())
    run.train()
    after = run.policy.state_dict()
    assert all(torch.equal(after[name], before[name]) == (".lora_" not in name) for name in after)
    rows = metrics(tmp_path)
    # the KL to the policy without adapters
    assert abs(rows[0]["kl"]) < 1e-5 and abs(rows[-1]["kl"]) > 1e-4
    (folder,) = (tmp_path / "checkpoints").iterdir()
    saved = checkpoint.load_file(str(folder / "model.safetensors"))
    saved_of_policy = {name for name in saved if name.startswith("policy.")}
    assert saved_of_policy == {f"policy.{name}" for name in after if ".lora_" in name}
    assert any(name.startswith("value.head.") for name in saved)
    batch = sampled(run.policy.eval())
    final = load_policy(tmp_path / "final").eval()
    torch.testing.assert_close(
        logprobs(final, batch), logprobs(run.policy, batch), atol=1e-5, rtol=0
    )
