"""Model folders from anywhere: complete ones load, others are refused with a reason."""

import io
import json
from functools import partial

import families
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForTokenClassification,
)

from fgrlhf.base.errors import UserError
from fgrlhf.models.loading import load_config, load_tokenizer, load_weights
from fgrlhf.policy import load_policy
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.reward_models.prefix import text_prefix


@pytest.fixture
def saved(tmp_path):
    """A saved T5 policy's folder."""
    tiny.policy("t5").save(tmp_path / "model")
    return tmp_path / "model"


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, change):
    """Save `change` of the tensors; returns how many are gone."""
    path = str(folder / "model.safetensors")
    tensors = load_file(path)
    changed = change(tensors)
    save_file(changed, path, {"format": "pt"})
    return len(tensors) - len(changed)


@pytest.mark.parametrize("kind", sorted(tiny.POLICIES))
def test_a_saved_policy_loads_completely(kind, tmp_path):
    policy = tiny.policy(kind)
    policy.save(tmp_path)
    config = load_config(tmp_path)
    cls = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    loaded = load_weights(cls, tmp_path)
    expected = policy.model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    assert load_tokenizer(tmp_path).get_vocab() == policy.tokenizer.get_vocab()


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_model_with_fewer_embeddings_than_tokens_is_refused(kind, tmp_path):
    policy = tiny.policy(kind)
    size = max(policy.tokenizer.get_vocab().values())
    policy.model.resize_token_embeddings(size)
    policy.save(tmp_path)
    message = f"tokens up to number {size}, but the network has only {size} embeddings"
    with pytest.raises(UserError, match=message):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    "family, keys", [("mbart", ("encoder_layerdrop", "decoder_layerdrop")), ("opt", ("layerdrop",))]
)
def test_layers_are_never_skipped(family, keys, tmp_path):
    """With LayerDrop at 1, no layer would be trained."""
    families.save(family, tmp_path, **dict.fromkeys(keys, 1.0))
    policy = load_policy(tmp_path).train()
    ids = torch.tensor([[3, 4, 5]])
    mask = torch.ones_like(ids)
    policy(ids, mask, ids, mask)[0].logprobs_BT.sum().backward()
    assert all(p.grad is not None for p in policy.parameters())

    shape = "seq2seq" if family == "mbart" else "causal"
    scorer = LanguageModelScorer.start_from(str(tmp_path), shape, "sequence").train()
    for key in keys:
        assert getattr(scorer.trunk.config, key) == 0.0
        assert getattr(policy.model.config, key) == 0.0


def test_a_limit_that_is_unset_is_none(tmp_path):
    """DBRX's class cannot compute without it."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dbrx"}))
    assert load_config(tmp_path).attn_config.clip_qkv > 1e6


def test_a_missing_tensor_is_named(saved):
    def without_a_block(tensors):
        return {name: t for name, t in tensors.items() if "decoder.block.1." not in name}

    lost = change_tensors(saved, without_a_block)
    with pytest.raises(ValueError, match=f"lack {lost} of the tensors.*decoder.block.1"):
        load_weights(AutoModelForSeq2SeqLM, saved)


def test_a_head_may_be_new_where_training_starts(tmp_path):
    tiny.policy("gpt2").save(tmp_path)
    with pytest.raises(ValueError, match="lack"):
        load_weights(AutoModelForTokenClassification, tmp_path)
    load_weights(AutoModelForTokenClassification, tmp_path, may_lack=("classifier.", "score."))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(saved, bad):
    name = "encoder.block.0.layer.1.DenseReluDense.wi.weight"

    def with_one_bad_value(tensors):
        tensors[name][3, 4] = bad
        return tensors

    change_tensors(saved, with_one_bad_value)
    with pytest.raises(ValueError, match=f"NaN or infinity .{name}"):
        load_weights(AutoModelForSeq2SeqLM, saved)


def test_sizes_of_another_model_are_named(saved):
    change_config(saved, d_ff=44)
    with pytest.raises(ValueError, match=r"has the size \(.*\), but the config requires \("):
        load_weights(AutoModelForSeq2SeqLM, saved)


def test_what_is_no_file_or_no_setting_is_said(saved):
    settings = saved / "generation_config.json"
    settings.write_text("{")
    with pytest.raises(UserError, match="generation_config.json is not valid JSON"):
        load_policy(saved)
    settings.write_text("[]")
    with pytest.raises(UserError, match="generation_config.json must be a JSON object"):
        load_policy(saved)
    settings.write_text("{}")
    (saved / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    with pytest.raises(UserError, match="tokenizer.json is a pointer of Git LFS.*git lfs pull"):
        load_policy(saved)
    (saved / "tokenizer.json").write_text("x")
    with pytest.raises(UserError, match="one of its JSON files is damaged"):
        load_policy(saved)


# ---- weights of few bits -------------------------------------------------------------------------


def rounded_to_fp8(folder, scale: str) -> torch.Tensor:
    """Save a Llama with projections in 8 bits; returns the projection that they stand for."""
    tiny.policy("llama").save(folder)
    tensors = load_file(folder / "model.safetensors")
    stored = {}
    for name, tensor in tensors.items():
        stored[name] = tensor
        if "proj" in name:
            unit = tensor.abs().max() / 448  # the largest number
            stored[name] = (tensor / unit).to(torch.float8_e4m3fn)
            stored[f"{name}{scale}"] = unit.reshape(1, 1)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    name = "model.layers.0.mlp.up_proj.weight"
    return stored[name].float() * stored[f"{name}{scale}"]


def test_weights_in_8_bits_become_ordinary_ones(tmp_path):
    expected = rounded_to_fp8(tmp_path / "start", "_scale_inv")
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    change_config(tmp_path / "start", quantization_config=fp8)
    load_policy(tmp_path / "start").save(tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.allclose(model.model.layers[0].mlp.up_proj.weight, expected, rtol=1e-5)
    assert "quantization_config" not in json.loads((tmp_path / "saved/config.json").read_text())
    assert load_policy(tmp_path / "start", empty=True).model.device.type == "meta"


def test_a_reward_model_of_another_program_may_have_8_bits(tmp_path):
    expected = rounded_to_fp8(tmp_path, "_scale_inv")
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    architecture = "LlamaForSequenceClassification"
    change_config(
        tmp_path, quantization_config=fp8, architectures=[architecture], id2label={"0": "LABEL_0"}
    )
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["score.weight"] = tensors.pop("lm_head.weight")[:1].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    scorer = load_reward_model(tmp_path, text_prefix, mean=0.0, std=1.0)
    weight = scorer.model.model.layers[0].mlp.up_proj.weight
    assert torch.allclose(weight, expected, rtol=1e-5)


@pytest.mark.parametrize("config", [{}, {"quantization_config": {"quant_method": "unknown"}}])
def test_rounded_weights_that_nothing_describes_are_refused(config, tmp_path):
    rounded_to_fp8(tmp_path, "_scale")
    change_config(tmp_path, **config)
    with pytest.raises(UserError, match="weights are rounded to a few bits"):
        load_policy(tmp_path)


@pytest.mark.parametrize("method", ["bitsandbytes", "fp8", "mxfp4"])
def test_ordinary_weights_are_read_as_such_whatever_their_config_says(method, tmp_path):
    """As Unsloth has written them: an adapter merged with a model of 4 bits."""
    policy = tiny.policy("llama")
    policy.save(tmp_path)
    change_config(tmp_path, quantization_config={"quant_method": method, "load_in_4bit": True})
    loaded = load_policy(tmp_path)
    assert torch.equal(loaded.model.lm_head.weight, policy.model.lm_head.weight)
    loaded.save(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved/config.json").read_text())


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_attention_of_another_machine_is_no_property_of_a_model(key, tmp_path):
    tiny.policy("llama").save(tmp_path)
    change_config(tmp_path, **{key: "flash_attention_2"})
    assert load_policy(tmp_path).model.config._attn_implementation != "flash_attention_2"


def test_large_finite_weights_are_accepted(saved):
    name = "shared.weight"
    change_tensors(saved, lambda tensors: tensors | {name: tensors[name].fill_(3e38)})
    load_weights(AutoModelForSeq2SeqLM, saved)


@pytest.mark.parametrize("stdin", ["y\n" * 9, ""])
def test_code_of_a_folder_is_never_run(saved, tmp_path, stdin, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    ran = tmp_path / "ran"
    (saved / "code.py").write_text(f"import os\nos.mkdir({str(ran)!r})\n")
    change_config(
        saved,
        model_type="mine",
        auto_map={"AutoConfig": "code.Config", "AutoModelForSeq2SeqLM": "code.Model"},
    )
    for load in (
        load_config,
        load_tokenizer,
        partial(load_weights, AutoModelForSeq2SeqLM),
        load_policy,
        partial(load_policy, empty=True),
    ):
        with pytest.raises((ValueError, UserError), match="never run"):
            load(saved)
    assert not ran.exists()


def test_links_out_of_the_folder_are_refused(saved, tmp_path):
    whole = saved / "model.safetensors"
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    whole.rename(outside / "model.safetensors")
    whole.symlink_to(outside / "model.safetensors")
    with pytest.raises(ValueError, match="model.safetensors is a symbolic link that leads out"):
        load_config(saved)
    whole.unlink()
    (outside / "model.safetensors").rename(saved / "weights")
    whole.symlink_to("weights")
    load_weights(AutoModelForSeq2SeqLM, saved)


def test_links_of_the_hub_cache_are_accepted(saved, tmp_path):
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in saved.iterdir():
        file.rename(blobs / file.name)
        (snapshot / file.name).symlink_to(blobs / file.name)
    load_weights(AutoModelForSeq2SeqLM, snapshot)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("no/such/folder", "no such folder"),
        ("nothing/here", "no such folder, the Hugging Face hub cannot be reached"),
        ("", "it has no config.json"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path, monkeypatch, name, reason):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = name if name == "nothing/here" else tmp_path / name  # perhaps a name of the hub
    with pytest.raises(ValueError, match=reason):
        load_config(folder)


@pytest.mark.parametrize("lost", [["tokenizer.json"], ["tokenizer.json", "tokenizer_config.json"]])
def test_a_tokenizer_without_its_vocabulary_is_refused(saved, lost):
    for name in lost:
        (saved / name).unlink()
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
        load_tokenizer(saved)


@pytest.mark.parametrize("length", ["x", -1, True, [], 0])
def test_a_tokenizers_max_length_must_be_a_length(saved, length):
    path = saved / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": length}))
    with pytest.raises(ValueError, match="model_max_length|damaged"):
        load_tokenizer(saved)
