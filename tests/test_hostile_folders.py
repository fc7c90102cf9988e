"""Model folders from strangers, or damaged ones: no code runs; they are used, or refused."""

import io
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import rm_helpers as rm
import tiny
import torch
from safetensors.torch import load_file, save_file

from fgrlhf.base.errors import UserError
from fgrlhf.policy import load_policy
from fgrlhf.reward_models.loading import load_reward_model
from fgrlhf.reward_models.spec import RewardModelSpec
from reward_modeling.config import RMModelConfig
from reward_modeling.network import load_network

Change = Callable[[Path], object]  # of a folder, next to which `ran` appears if code runs
WEIGHTS = "model.safetensors"


# ---- changes -------------------------------------------------------------------------------------


def file(name: str, content: str | bytes) -> Change:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def keys(name: str, **changes) -> Change:
    """Change keys of a JSON file; in a reward model's config those of the language model."""

    def change(folder: Path) -> None:
        path = folder / name
        tree = json.loads(path.read_text()) if path.exists() else {}
        tree.get("trunk", tree).update(changes)
        path.write_text(json.dumps(tree))

    return change


def config(**changes) -> Change:
    return keys("config.json", **changes)


def code(name: str = "config.json", **changes) -> Change:
    """Add a module, and keys that may name it."""

    def change(folder: Path) -> None:
        ran = str(folder.with_name("ran"))
        (folder / "evil.py").write_text(f"import os\nos.makedirs({ran!r}, exist_ok=True)\n")
        keys(name, **changes)(folder)

    return change


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def pickled(name: str = "pytorch_model.bin", only: bool = True) -> Change:
    """Add a pickle; `only`: in the place of the weights."""

    def change(folder: Path) -> None:
        if only:
            (folder / WEIGHTS).unlink()
        (folder / name).write_bytes(pickle.dumps(Payload(folder.with_name("ran"))))

    return change


def tensors(change_of: Callable[[dict], dict]) -> Change:
    def change(folder: Path) -> None:
        changed = change_of(load_file(folder / WEIGHTS))
        sound = {name: tensor.contiguous().clone() for name, tensor in changed.items()}
        save_file(sound, folder / WEIGHTS, {"format": "pt"})

    return change


def each(change_of: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return tensors(lambda of: {name: change_of(tensor) for name, tensor in of.items()})


def linked_out(name: str) -> Change:
    """Replace a file by a link to a file outside of the folder."""

    def change(folder: Path) -> None:
        (folder / name).rename(folder.with_name(name))
        (folder / name).symlink_to(folder.with_name(name))

    return change


def index(weight_map) -> Change:
    """The index of a checkpoint of several files; a text is the file of every tensor."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
        names = weight_map
        if isinstance(weight_map, str):
            names = dict.fromkeys(["shared.weight", "lm_head.weight"], weight_map)
        tree = {"metadata": {}, "weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(tree))

    return change


def replaced(make: Callable[[Path], object]) -> Change:
    """Remove the folder, and make something else in its place."""
    return lambda folder: (shutil.rmtree(folder), make(folder))


def in_place_of(name: str, make: Callable[[Path], object]) -> Change:
    return lambda folder: ((folder / name).unlink(), make(folder / name))


def header(length: int, text: bytes) -> bytes:
    """A safetensors file that declares a header of this length."""
    return struct.pack("<Q", length) + text


CODE = {"AutoConfig": "evil.C", "AutoModel": "evil.M", "AutoModelForSeq2SeqLM": "evil.M"}
TOKENIZER = {"AutoTokenizer": ["evil.T", None]}
REFUSED: dict[str, Change] = {
    "code for an unknown type": code(auto_map=CODE, model_type="evil"),
    "code and no type": code(auto_map=CODE, model_type=None),
    "code of a hub name": code(auto_map={"AutoConfig": "some/repo--evil.C"}, model_type="evil"),
    "a pickle": pickled(),
    "weights behind a link": linked_out(WEIGHTS),
    "a config behind a link": linked_out("config.json"),
    "a tokenizer behind a link": linked_out("tokenizer.json"),
    "an index that leads out": index("../outside.safetensors"),
    "an index of an absolute path": index("/etc/passwd"),
    "an index of nothing": index({}),
    "an index of a list": index([1, 2]),
    "an index of numbers": index({"a": 1}),
    "config empty": file("config.json", ""),
    "config a list": file("config.json", "[]"),
    "config not UTF-8": file("config.json", b"\xff\xfe"),
    "config deep": file("config.json", "[" * 100_000),
    "config of 5,000 digits": file("config.json", '{"d_model": ' + "9" * 5_000 + "}"),
    "config gone": lambda folder: (folder / "config.json").unlink(),
    "type a list": config(model_type=["t5"]),
    "type a number": config(model_type=5),
    "type of a picture model": config(model_type="vit"),
    "a billion layers": config(num_layers=10**9),
    "layers as text": config(num_layers="x"),
    "-1 layers": config(num_layers=-1),
    "no layers": config(num_layers=0),
    "-1 layers of the decoder": config(num_decoder_layers=-1),
    "9 layers": config(num_layers=9, num_decoder_layers=9),
    "width 0": config(d_model=0),
    "width 2.5": config(d_model=2.5),
    "width 1e30": config(d_model=10**30),
    "width null": config(d_model=None),
    "another width": config(d_model=24),
    "a vocabulary of 1e12": config(vocab_size=10**12),
    "a vocabulary of 5": config(vocab_size=5),
    "tokenizer empty": file("tokenizer.json", "{}"),
    "tokenizer a list": file("tokenizer.json", "[]"),
    "tokenizer a NUL": file("tokenizer.json", "\0"),
    "tokenizer deep": file("tokenizer.json", "[" * 100_000),
    "half of the tensors": tensors(lambda of: {name: of[name] for name in sorted(of)[::2]}),
    "other shapes": each(lambda tensor: tensor[:1] if tensor.dim() > 1 else tensor),
    "other names": tensors(lambda of: {f"x.{name}": tensor for name, tensor in of.items()}),
    "NaN weights": each(lambda tensor: tensor * float("nan")),
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "empty weights": file(WEIGHTS, b""),
    "weights of zeros": file(WEIGHTS, b"\0" * 4_096),
    "a header of 2**63 bytes": file(WEIGHTS, header(2**63 - 1, b"{}")),
    "a header that is a list": file(WEIGHTS, header(2, b"[]")),
    "weights cut": lambda folder: os.truncate(folder / WEIGHTS, 5_000),
    "weights a folder": in_place_of(WEIGHTS, Path.mkdir),
    "a file for the folder": replaced(lambda folder: folder.write_text("a file")),
    "an empty folder": replaced(Path.mkdir),
    "a folder that links to itself": replaced(lambda folder: folder.symlink_to(folder)),
}
# They may be used, if that does no harm.
ODD: dict[str, Change] = {
    "code for a known type": code(auto_map=CODE),
    "code for the tokenizer": code("tokenizer_config.json", auto_map=TOKENIZER),
    "a pickle beside safetensors": pickled(only=False),
    "pickled arguments": pickled("training_args.bin", only=False),
    "architectures a number": config(architectures=7),
    "an odd dtype": config(dtype="float9000", torch_dtype="float9000"),
    "quantized": config(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "an odd attention": config(_attn_implementation="evil", attn_implementation="some/repo"),
    "tokenizer config a list": file("tokenizer_config.json", "[]"),
    "tokenizer config a text": file("tokenizer_config.json", '"x"'),
    "odd lengths": keys("tokenizer_config.json", model_max_length="x"),
    "a pad token of no kind": keys("tokenizer_config.json", pad_token={"a": 1}),
    "whole numbers": each(lambda tensor: tensor.to(torch.int64)),
    "more tensors": tensors(lambda of: {**of, "evil": torch.zeros(3)}),
    "generation config a list": file("generation_config.json", "[]"),
    "generation config of odd types": file(
        "generation_config.json", '{"eos_token_id": "x", "max_length": "y"}'
    ),
    "an adapter": file("adapter_config.json", '{"base_model_name_or_path": "../x"}'),
    "an adapter a list": file("adapter_config.json", "[]"),
}


# ---- folders -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A policy and a reward model: the folder of each, and the function that loads it."""
    folder = tmp_path_factory.mktemp("sound")
    tiny.policy("t5").save(folder / "policy")
    section = RMModelConfig(ckpt=str(rm.start(folder, "seq2seq")), max_input_len=64)
    network, tokenizer = load_network(section, "segment", {0: "E", 1: "O"})
    for part in (network, tokenizer):
        part.save_pretrained(folder / "rm")
    labels = (("E", "O"), "E", "O")
    RewardModelSpec("segment", "seq2seq", "sentence", False, 64, *labels).save(folder / "rm")
    return {
        "policy": (folder / "policy", load_policy),
        "rm": (folder / "rm", lambda path: load_reward_model(path, rm.prefix_fn)),
    }


@pytest.mark.filterwarnings("ignore")  # of what transformers finds odd
@pytest.mark.parametrize("name", [*REFUSED, *ODD])
@pytest.mark.parametrize("kind", ["policy", "rm"])
def test_a_hostile_folder_runs_nothing_and_is_refused_or_used(
    sound, kind, name, tmp_path, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 50))
    folder, load = sound[kind]
    shutil.copytree(folder, tmp_path / "model")
    (REFUSED.get(name) or ODD[name])(tmp_path / "model")
    try:
        load(tmp_path / "model")
    except UserError as error:
        assert 20 < len(str(error)) < 1_500
    else:
        assert name in ODD
    assert not (tmp_path / "ran").exists()


def test_the_payload_of_a_pickle_runs(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))
    assert (tmp_path / "ran").is_dir()
