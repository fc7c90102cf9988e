"""Pickled weights become safetensors once, and no code of a pickle runs."""

import json
import os
import pickle
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from fgrlhf.base.errors import UserError
from fgrlhf.cli.data import main
from fgrlhf.data.convert_model import convert_model
from fgrlhf.models.loading import load_tokenizer, load_weights
from fgrlhf.models.provenance import read_source


@pytest.fixture
def pickled(tmp_path) -> Path:
    """A T5 as older releases saved it: all names of the tied weights, in one pickle."""
    folder = tmp_path / "old"
    tiny.t5(seed=1).save(folder)
    (folder / "model.safetensors").unlink()
    torch.save(tiny.t5(seed=1).model.state_dict(), folder / "pytorch_model.bin")
    return folder


def test_a_converted_model_is_the_model(pickled, tmp_path, capsys):
    with pytest.raises(ValueError, match="fgrlhf data model FOLDER"):
        load_weights(AutoModelForSeq2SeqLM, pickled)
    main(["model", str(pickled), f"output_dir={tmp_path}/new"])
    assert "converting pytorch_model.bin" in capsys.readouterr().out
    model = load_weights(AutoModelForSeq2SeqLM, tmp_path / "new")
    expected = tiny.t5(seed=1).model.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    tokenizer = load_tokenizer(tmp_path / "new")
    assert tokenizer("the cat")["input_ids"] == tiny.t5().tokenizer("the cat")["input_ids"]
    assert not list((tmp_path / "new").glob("*.bin"))
    assert "converted from pytorch_model.bin" in str(read_source(tmp_path / "new"))
    with pytest.raises(UserError, match="exists"):
        convert_model(str(pickled), tmp_path / "new")


def test_parts_are_put_together(pickled, tmp_path):
    tensors = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    (pickled / "pytorch_model.bin").unlink()
    weight_map = {}
    for number, name in enumerate(tensors):
        weight_map[name] = f"pytorch_model-{number % 2}.bin"
    for file in set(weight_map.values()):
        part = {name: tensors[name] for name in tensors if weight_map[name] == file}
        torch.save(part, pickled / file)
    index = {"weight_map": weight_map}
    (pickled / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    convert_model(str(pickled), tmp_path / "new")
    converted = load_file(tmp_path / "new" / "model.safetensors")
    assert converted.keys() == tensors.keys()
    assert all(torch.equal(converted[name], tensor) for name, tensor in tensors.items())
    assert not (tmp_path / "new" / "pytorch_model.bin.index.json").exists()


class _Payload:
    def __init__(self, folder: Path):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_no_code_runs_and_nothing_half_written_stays(pickled, tmp_path):
    payload = pickle.dumps({"weight": _Payload(tmp_path / "ran")}, protocol=2)
    torch.save({"weight": _Payload(tmp_path / "ran")}, pickled / "pytorch_model.bin")
    for content in (payload, (pickled / "pytorch_model.bin").read_bytes(), b"no pickle"):
        (pickled / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(UserError, match="cannot be read without running its code"):
            convert_model(str(pickled), tmp_path / "new")
    assert not (tmp_path / "ran").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["old"]


@pytest.mark.parametrize(
    "content, message",
    [([1, 2], "holds a list"), ({"step": 3}, "`step` is not a tensor"), (None, "has no pytorch")],
)
def test_what_is_no_model_is_refused(pickled, tmp_path, content, message):
    (pickled / "pytorch_model.bin").unlink()
    if content is not None:
        torch.save(content, pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match=message):
        convert_model(str(pickled), tmp_path / "new")


@pytest.mark.parametrize("weight_map", [{"weight": ["a.bin"]}, {"weight": "../a.bin"}, {}, []])
def test_an_index_without_names_of_files_is_refused(pickled, tmp_path, weight_map):
    index = json.dumps({"weight_map": weight_map})
    (pickled / "pytorch_model.bin.index.json").write_text(index)
    with pytest.raises(UserError, match="has no `weight_map` from tensors to files"):
        convert_model(str(pickled), tmp_path / "new")
