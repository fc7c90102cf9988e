"""Lossless tokenizers, and random models that are a function of their seed."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import T5ForConditionalGeneration

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.cli import tiny_model
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.tiny import (
    DECODER_LOOKS_BACK,
    ENCODER_LOOKS_BACK,
    save_model,
    tiny_causal,
    tiny_encoder_decoder,
    word_tokenizer,
)
from fgrlhf.policy import CausalPolicy, EncoderDecoderPolicy, load_policy

TEXTS = [
    "Count: 3, 14, 15 ; then stop.",
    "move the disc from A to C\nmove it back",
    "disc-1 goes to (B)",
]


@pytest.mark.parametrize("add_eos", [True, False])
def test_texts_come_back_exactly(add_eos):
    tokenizer = word_tokenizer(TEXTS, add_eos)
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        assert (ids[-1] == tokenizer.eos_token_id) == add_eos
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer("14", add_special_tokens=False).input_ids) == 1
    assert tokenizer("unseen", add_special_tokens=False).input_ids == [tokenizer.unk_token_id]


@pytest.mark.parametrize(
    "make, policy_class",
    [(tiny_encoder_decoder, EncoderDecoderPolicy), (tiny_causal, CausalPolicy)],
)
def test_a_model_is_a_function_of_its_seed_and_loads_as_a_policy(tmp_path, make, policy_class):
    """The state of the global generator, which differs between processes, has no effect."""
    tokenizer = word_tokenizer(TEXTS, add_eos=policy_class is EncoderDecoderPolicy)
    weights = {}
    for name, seed, global_seed in (("a", 0, 1), ("b", 0, 2), ("c", 1, 1)):
        torch.manual_seed(global_seed)
        save_model(tmp_path / name, make(tokenizer, seed), tokenizer)
        weights[name] = load_file(str(tmp_path / name / "model.safetensors"))
    assert all(torch.equal(weights["a"][name], weights["b"][name]) for name in weights["a"])
    matrices = [name for name, tensor in weights["a"].items() if tensor.dim() == 2]
    assert any("mlp" in name or "DenseReluDense" in name for name in matrices)
    drawn = [name for name in matrices if "relative_attention_bias" not in name]
    assert not any(torch.equal(weights["a"][name], weights["c"][name]) for name in drawn)

    policy = load_policy(tmp_path / "a")
    assert type(policy) is policy_class
    response = policy.generate(*policy.encode(TEXTS), Sampling(5), [1, 2, 3])
    assert response.mask_BT.sum() > 0


def test_only_the_first_of_several_processes_writes(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "model"
    arguments = ["numbers", f"output_dir={folder}", "width=16", "heads=2"]
    monkeypatch.setenv("RANK", "1")
    tiny_model.main(arguments)
    assert not folder.exists() and capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    tiny_model.main(arguments)
    assert (folder / "model.safetensors").exists() and "parameters" in capsys.readouterr().out


def test_sizes_can_be_changed():
    tokenizer = word_tokenizer(TEXTS)
    assert tiny_causal(tokenizer, hidden_size=32).config.hidden_size == 32
    small = tiny_encoder_decoder(tokenizer, d_model=64, num_layers=1)
    assert small.config.d_model == 64 and len(small.encoder.block) == 1
    with pytest.raises(ValueError, match="5 heads should look back, but a layer has 4"):
        tiny_encoder_decoder(tokenizer, d_model=64, num_heads=4)
    with pytest.raises(ValueError, match="must not be less than d_model"):
        tiny_encoder_decoder(tokenizer, d_model=256)


@pytest.fixture(scope="module")
def model() -> T5ForConditionalGeneration:
    return tiny_encoder_decoder(word_tokenizer(TEXTS)).eval()


def test_heads_look_back_by_their_offsets(model):
    model.set_attn_implementation("eager")  # the only implementation that returns attention weights
    ids = torch.randint(3, model.config.vocab_size, (1, 60))
    with torch.no_grad():
        encoded = model.encoder(input_ids=ids, output_attentions=True)
        decoded = model.decoder(
            input_ids=ids, encoder_hidden_states=encoded.last_hidden_state, output_attentions=True
        )
    position = torch.arange(20, 60)
    for attentions, offsets in (
        (encoded.attentions, ENCODER_LOOKS_BACK),
        (decoded.attentions, DECODER_LOOKS_BACK),
    ):
        first_layer_HLL = attentions[0][0]
        for head, offset in enumerate(offsets):
            looks_at = first_layer_HLL[head, position].argmax(-1)
            assert torch.equal(looks_at, position - offset)


def test_cross_attention_compares_and_copies(model):
    for block in model.decoder.block:
        attention = block.layer[1].EncDecAttention
        assert torch.equal(attention.q.weight, attention.k.weight)
        copies = attention.o.weight @ attention.v.weight
        assert torch.allclose(copies, torch.eye(128), atol=1e-5)


@pytest.mark.parametrize("shape", ["causal", "seq2seq"])
def test_the_command_writes_either_shape(shape, tmp_path):
    write_json(tmp_path / "train.json", [{"prompt": "the red cat", "references": ["le chat"]}])
    arguments = [f"train_file={tmp_path}/train.json", f"output_dir={tmp_path}/model", "width=32"]
    tiny_model.main(["tasks.translation", *arguments, f"shape={shape}", "layers=1"])
    policy = load_policy(tmp_path / "model")
    expected = EncoderDecoderPolicy if shape == "seq2seq" else CausalPolicy
    assert type(policy) is expected and policy.hidden_size == 32
    ids, _ = policy.encode(["the red cat"])
    assert (ids[0, -1] == policy.end_id) == (shape == "seq2seq")


def test_an_encoder_decoder_needs_heads_that_look_back(tmp_path):
    arguments = [f"output_dir={tmp_path}", "shape=seq2seq", "heads=4"]
    with pytest.raises(UserError, match="heads: an encoder-decoder needs 5 or more"):
        tiny_model.main(["tasks.translation", *arguments])
