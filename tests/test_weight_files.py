"""Folders whose weights a stage cannot read say which files are there, and what to do."""

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForSequenceClassification

from fgrlhf.base.errors import UserError
from fgrlhf.cli.data import main
from fgrlhf.data.convert_model import convert_model
from fgrlhf.models.loading import load_weights
from fgrlhf.policy import load_policy
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.networks import LanguageModelScorer
from fgrlhf.reward_models.prefix import text_prefix


@pytest.fixture
def folder(tmp_path) -> Path:
    """A policy's folder."""
    tiny.policy("llama").save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def bare(folder) -> Path:
    """The folder without its weights."""
    (folder / "model.safetensors").unlink()
    return folder


def reason(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        load_policy(folder)
    return str(error.value)


@pytest.mark.parametrize(
    "file, words",
    [
        ("small.Q4_1.gguf", ["GGUF", "from which it was made"]),
        ("onnx/decoder.onnx", ["ONNX", "from which it was exported"]),
        ("pytorch_model_fsdp_0/__0_0.distcp", ["FSDP", "accelerate merge-weights"]),
        ("tf_model.h5", ["TensorFlow"]),
        ("flax_model.msgpack", ["Flax"]),
        ("model.bin", ["CTranslate2", "from which it was converted"]),
        ("weights.pt", ["pickle", "name it pytorch_model.bin", "fgrlhf data model"]),
        ("model-00002-of-00003.safetensors", ["parts", "no model.safetensors.index.json"]),
        ("other.safetensors", ["other.safetensors", "rename the file"]),
        ("optimizer.pt", ["no weights (model.safetensors)"]),
    ],
)
def test_the_files_that_are_there_are_named_with_the_way_out(bare, file, words, tmp_path):
    (bare / file).parent.mkdir(exist_ok=True)
    (bare / file).write_bytes(b"\x06\x00\x00\x00 weights")
    if file.endswith(".safetensors"):
        save_file({"a": torch.zeros(1)}, str(bare / file), {"format": "pt"})
    text = reason(bare)
    assert all(word in text for word in words), text
    if "weights" not in words[0] and not file.endswith(".safetensors"):
        assert file in text
        with pytest.raises(UserError, match="cannot be converted") as error:
            convert_model(str(bare), tmp_path / "new")
        assert words[0] in str(error.value)


def test_other_formats_beside_safetensors_do_not_matter(folder):
    (folder / "model.onnx").write_bytes(b"x")
    (folder / "model.bin").write_bytes(b"x")
    load_policy(folder)


def test_a_checkpoint_of_a_training_names_the_entry_of_its_weights(bare, tmp_path):
    weights = tiny.policy("llama").model.state_dict()
    content = {"step": 3, "model": weights, "optimizer": {"lr": 0.1}}
    torch.save(content, bare / "pytorch_model.bin")
    with pytest.raises(UserError, match="checkpoint of a training: its weights are under `model`"):
        convert_model(str(bare), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_prefix_of_a_wrapper_is_removed(bare, tmp_path, capsys):
    weights = tiny.policy("llama").model.state_dict()
    renamed = {f"module._orig_mod.{name}": tensor for name, tensor in weights.items()}
    torch.save(renamed, bare / "pytorch_model.bin")
    main(["model", str(bare), f"output_dir={tmp_path}/new"])
    assert "`module.` is removed from the names of all tensors" in capsys.readouterr().out
    loaded = load_weights(AutoModelForCausalLM, tmp_path / "new").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def test_another_prefix_is_named(folder):
    file = str(folder / "model.safetensors")
    renamed = {f"lightning.{name}": tensor for name, tensor in load_file(file).items()}
    save_file(renamed, file, {"format": "pt"})
    assert "Its file has them with `lightning.` before each name" in reason(folder)


@pytest.mark.parametrize("tied", [False, True])
def test_a_classifier_is_no_policy(folder, tied):
    """With tied embeddings nothing is missing, and the policy would start from a judge."""
    config = json.loads((folder / "config.json").read_text())
    config = config | {"tie_word_embeddings": tied, "num_labels": 1}
    (folder / "config.json").write_text(json.dumps(config))
    model = LlamaForSequenceClassification.from_pretrained(folder)
    model.save_pretrained(folder)
    text = reason(folder)
    assert "it is a sequence classifier (LlamaForSequenceClassification)" in text
    assert "kind: sequence_scorer" in text


def test_a_reward_model_of_this_library_is_no_policy(folder, tmp_path):
    scorer = LanguageModelScorer.start_from(str(folder), "causal", "sequence")
    scorer.save_pretrained(tmp_path / "rm")
    assert "it is a reward model of this library" in reason(tmp_path / "rm")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_is_not_its_folder(folder, name, tmp_path):
    message = f"is a file, but a model is a folder: give {folder}"
    assert message in reason(folder / name)
    with pytest.raises(UserError, match=message):
        load_reward_model(str(folder / name), text_prefix)
    with pytest.raises(UserError, match=message):
        convert_model(str(folder / name), tmp_path / "new")


# ---- damaged and rounded weights -----------------------------------------------------------------


@pytest.fixture
def parts(tmp_path) -> Path:
    """A policy's folder with weights in several files."""
    policy = tiny.policy("llama")
    policy.model.save_pretrained(tmp_path / "parts", max_shard_size="40KB")
    policy.tokenizer.save_pretrained(tmp_path / "parts")
    load_policy(tmp_path / "parts")
    return tmp_path / "parts"


def test_a_damaged_part_of_the_weights_is_named(parts, tmp_path):
    second = sorted(parts.glob("*.safetensors"))[1]
    content = second.read_bytes()
    for damaged in (b"", content[:-100], content[:50], b"<html>not found</html>" * 20):
        second.write_bytes(damaged)
        assert f"{second.name} is damaged" in reason(parts)
    second.unlink()
    assert f"names {second.name}, which is missing: copy or fetch it" in reason(parts)
    second.symlink_to("gone")
    assert f"{second.name} is a symbolic link to a file that is missing" in reason(parts)


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
def test_weights_of_8_bits_are_never_read_as_numbers(folder, stored):
    """Whatever the tensors of their scales are named."""
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    unit = tensors[name].abs().max() / 100
    tensors |= {name: (tensors[name] / unit).to(stored), f"{name}.unit": unit.reshape(1)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert f"rounded to a few bits ({name} in model.safetensors is" in reason(folder)


def test_the_models_inside_a_folder_are_named(folder, tmp_path):
    """A training that was stopped leaves checkpoints, and peft named adapters."""
    folder.rename(tmp_path / "run-1")
    (tmp_path / "run-1" / "sub").mkdir()
    adapter = tmp_path / "second"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    save_file({"a": torch.zeros(1)}, adapter / "adapter_model.safetensors")
    words = f"inside it: `{tmp_path}/run-1`, `{adapter}`"
    assert words in reason(tmp_path)
    for act in (
        lambda: load_reward_model(tmp_path, text_prefix),
        lambda: convert_model(str(tmp_path), tmp_path / "new"),
    ):
        with pytest.raises(UserError) as error:
            act()
        assert words in str(error.value)
