"""`fgrlhf data model FILE.gguf`: the logits of the source, its tokens, and what is refused."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny
import torch
from gguf_files import MERGED, TEMPLATE, TOKENS, write_gguf
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import read_json
from fgrlhf.cli import data
from fgrlhf.data import gguf_model
from fgrlhf.data.gguf_model import read_gguf
from fgrlhf.models.provenance import read_source
from fgrlhf.policy import load_policy

TEXT = "In 1987,\n\n12 cats  3"
SIZES = {
    **{"vocab_size": len(TOKENS), "hidden_size": 64, "intermediate_size": 96},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 128, "initializer_range": 0.3},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
}
IDS = torch.arange(20).view(2, 10)
Q8, Q4 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 10_000.0}


def network(architecture: str, **changes) -> PreTrainedModel:
    torch.manual_seed(0)
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, **changes)).eval()
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **changes)).eval()


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def convert(file: Path, folder: Path, *arguments: str) -> Path:
    data.main(["model", str(file), f"output_dir={folder}", *arguments])
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_folder_computes_what_the_source_does(architecture, tied, tmp_path):
    source = network(architecture, tie_word_embeddings=tied)
    file = write_gguf(tmp_path / "a.gguf", source, architecture)
    folder = convert(file, tmp_path / "out")
    converted = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(logits(converted), logits(source), atol=1e-5, rtol=1e-5)
    assert converted.config.tie_word_embeddings == tied
    assert "quantization_config" not in read_json(folder / "config.json")
    assert "GGUF, weights de-quantised" in str(read_source(folder))


@pytest.mark.parametrize("quantised, worst", [(Q8, 1 / 254), (Q4, 1 / 30)])
def test_weights_of_a_few_bits_are_off_by_half_a_step(quantised, worst, tmp_path):
    """A block of 32 weights has steps of max |w| / 127 in Q8_0, of (max - min) / 15 in Q4_1."""
    source = network("llama")
    read, _ = read_gguf(write_gguf(tmp_path / "a.gguf", source, "llama", quantised))
    of_source = dict(source.named_parameters())
    largest = 0.0
    for name, weight in read.named_parameters():
        blocks = of_source[name].detach().reshape(-1, 32)
        span = blocks.abs().amax(1) if quantised == Q8 else blocks.amax(1) - blocks.amin(1)
        error = (weight.detach().reshape(-1, 32) - blocks).abs().amax(1)
        largest = max(largest, float((error / span).nan_to_num().max()))
    assert 0.5 * worst < largest < 1.2 * worst  # scales are stored in fp16


def test_the_tokenizer_splits_digits_and_keeps_template_and_special_tokens(tmp_path):
    _, tokenizer = read_gguf(write_gguf(tmp_path / "a.gguf", network("llama"), "llama"))
    pieces = tokenizer.convert_ids_to_tokens(tokenizer(TEXT)["input_ids"])
    # transformers alone would read "\n\n12" as Ċ Ċ 1 2
    assert pieces == list("InĠ1987,") + ["ĊĊ"] + list("12Ġcats") + ["ĠĠ", "3"]
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT
    assert set(MERGED) <= set(pieces)
    assert tokenizer.is_fast and tokenizer.model_max_length == 128
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
    assert tokenizer.chat_template == TEMPLATE


def test_the_folder_is_a_policy_and_is_never_replaced(tmp_path):
    rotated = {"qwen2.rope.dimension_count": 16.0}  # all, which is what transformers takes
    values = {"tokenizer_pre": "qwen2", "settings": rotated}
    file = write_gguf(tmp_path / "a.gguf", network("qwen2"), "qwen2", **values)
    (tmp_path / "tokenizer_config.json").write_text("{}")  # of another model beside the file
    folder = convert(file, tmp_path / "out")
    policy = load_policy(folder)
    assert policy.end_id == 2 and policy.chat is not None
    with pytest.raises(UserError, match="out exists: use it, remove it"):
        convert(file, folder)


def test_a_file_of_the_hub(tmp_path, monkeypatch):
    asked = []

    def download(*names):
        asked.append(names)
        return str(write_gguf(tmp_path / "m.gguf", network("llama"), "llama"))

    monkeypatch.setattr(gguf_model, "hf_hub_download", download)
    monkeypatch.chdir(tmp_path)
    data.main(["model", "hub:org/name/sub/m.gguf"])
    assert asked == [("org/name", "sub/m.gguf")]
    assert (tmp_path / "outputs" / "models" / "m" / "model.safetensors").is_file()
    with pytest.raises(UserError, match="hub:OWNER/NAME/FILE.gguf"):
        data.main(["model", "hub:org/m.gguf", "output_dir=other"])


# ---- what transformers leaves out ----------------------------------------------------------------


def scaled(tmp_path: Path, **values) -> tuple[Path, Path, PreTrainedModel]:
    """A file of a model with scaled positions, the folder of its source, and the source.

    llama.cpp stores the divisors of Llama 3.1's frequencies as a tensor, which transformers skips.
    """
    source = network("llama", rope_parameters=LLAMA3)
    tensors = {"rope_freqs.weight": np.ones(8, np.float32)}
    file = write_gguf(tmp_path / "a.gguf", source, "llama", tensors=tensors, **values)
    _, tokenizer = read_gguf(write_gguf(tmp_path / "b.gguf", network("llama"), "llama"))
    source.save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    return file, tmp_path / "source", source


def test_scaled_positions_are_refused_or_read_from_the_base(tmp_path):
    file, folder, source = scaled(tmp_path, settings={"general.base_model.0.repo_url": URL})
    with pytest.raises(UserError, match=r"\(rope_freqs.weight\).*base=MODEL.* names org/source\)"):
        convert(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    converted = load_policy(convert(file, tmp_path / "out", f"base={folder}")).model
    plain = network("llama")
    plain.load_state_dict(source.state_dict())
    assert not torch.allclose(logits(plain), logits(source), atol=1e-3)  # as without the scaling
    torch.testing.assert_close(logits(converted), logits(source), atol=1e-5, rtol=1e-5)


def test_an_encoder_decoder_with_the_config_of_its_base(tmp_path):
    source = tiny.flan()
    source.save(tmp_path / "source")
    file = write_gguf(tmp_path / "a.gguf", source.model, "t5", bare=True)
    folder = convert(file, tmp_path / "out", f"base={tmp_path / 'source'}")
    converted = dict(load_policy(folder).model.named_parameters())
    for name, weight in source.model.named_parameters():
        torch.testing.assert_close(converted[name], weight, atol=0, rtol=0)


URL = "https://huggingface.co/org/source"
YARN = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}


@pytest.mark.parametrize(
    "values, message",
    [
        ({"settings": YARN}, "rope.scaling.type=yarn, qwen2.rope.scaling.factor=4.0.*base=MODEL"),
        ({"settings": {"qwen2.rope.dimension_count": 8.0}}, "rope.dimension_count=8.0.*base=MODEL"),
        ({"tokenizer_pre": "poro-chat"}, "by the rule `poro-chat`.*does not know.*base=MODEL"),
        ({"tokenizer_pre": None}, "by the rule `None`.*base=MODEL"),
        ({"feed_forward_length": 64}, "6 tensors of Qwen2ForCausalLM are not in the file, or have"),
    ],
)
def test_what_would_be_another_model_is_refused(values, message, tmp_path):
    file = write_gguf(tmp_path / "a.gguf", network("qwen2"), "qwen2", **values)
    with pytest.raises(UserError, match=message):
        convert(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_architecture_names_those_that_are_read(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "clip")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="`clip`, which transformers 5.* llama, .*name the model"):
        convert(tmp_path / "a.gguf", tmp_path / "out")


def test_a_part_of_a_model_names_the_merger(tmp_path):
    file = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="one of 3 parts.*llama-gguf-split --merge"):
        convert(file, tmp_path / "out")


@pytest.mark.parametrize("content", [b"GGUF" + bytes(40), b"PK", b""])
def test_a_file_that_is_not_gguf_is_a_user_error(content, tmp_path):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(UserError, match="a.gguf cannot be converted: it is not a GGUF file"):
        convert(tmp_path / "a.gguf", tmp_path / "out")
    with pytest.raises(UserError, match="b.gguf does not exist"):
        convert(tmp_path / "b.gguf", tmp_path / "out")
