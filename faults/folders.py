"""Kind `folders`: hostile model folders. tests/test_records.py has values of reward_model.json.

They must be refused with a reason. No code may run, even with `y` on standard input, and no
traceback may show.
"""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from faults.campaign import Kind, in_child
from faults.child import run
from faults.judging import Outcome

CANARY = "canary"
CODE = """
import pathlib
pathlib.Path({canary!r}).mkdir(exist_ok=True)
from transformers import PretrainedConfig, PreTrainedTokenizerFast, T5ForConditionalGeneration
class Evil(PretrainedConfig):
    model_type = "evil"
class EvilModel(T5ForConditionalGeneration):
    config_class = Evil
class EvilTokenizer(PreTrainedTokenizerFast):
    pass
"""
AUTO_MAP = {
    "AutoConfig": "evil.Evil",
    "AutoModelForSeq2SeqLM": "evil.EvilModel",
    "AutoModelForCausalLM": "evil.EvilModel",
    "AutoModel": "evil.EvilModel",
    "AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"],
}
HUB_MAP = {"AutoConfig": "some/repo--evil.Evil"}
TOKENIZER_MAP = {"AutoTokenizer": ["evil.EvilTokenizer", None]}
EIGHT_BITS = {"quant_method": "bitsandbytes", "load_in_8bit": True}
ADAPTER = '{"base_model_name_or_path": "../elsewhere", "peft_type": "LORA"}'
ODD_GENERATION = '{"eos_token_id": "x", "max_length": "y"}'


Apply = Callable[[Path, Path], object]  # (folder, canary)


@dataclass(frozen=True)
class Hostile:
    """A named fault: `apply` makes a valid folder hostile.

    refused: whether it must be refused; otherwise it may also be loaded without harm.
    """

    what: str
    apply: Apply
    refused: bool = True


# ---- means ---------------------------------------------------------------------------------------


def edit(folder: Path, name: str, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path = folder / name
    tree = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**tree, **changes}))


def put(folder: Path, name: str, content: str | bytes) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def coded(name: str = "config.json", **changes: Any) -> Apply:
    """Add code, and keys to a file that may name it."""

    def apply(folder: Path, canary: Path) -> None:
        put(folder, "evil.py", CODE.format(canary=str(canary)))
        edit(folder, name, **changes)

    return apply


class Payload:
    """Creates the canary when unpickled."""

    def __init__(self, canary: Path):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def pickled(name: str = "pytorch_model.bin", only: bool = True) -> Apply:
    """Add a pickle; `only`: without the weights as safetensors."""

    def apply(folder: Path, canary: Path) -> None:
        if only:
            (folder / "model.safetensors").unlink()
        put(folder, name, pickle.dumps(Payload(canary)))

    return apply


def torch_pickled(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1), "b": Payload(canary)}, folder / "pytorch_model.bin")


def weights(change: Callable[[dict], dict]) -> Apply:
    """Change the tensors."""

    def apply(folder: Path, canary: Path) -> None:
        path = folder / "model.safetensors"
        changed = change(load_file(path))
        sound = {name: tensor.contiguous().clone() for name, tensor in changed.items()}
        save_file(sound, path, {"format": "pt"})

    return apply


def each_tensor(change: Callable[[torch.Tensor], torch.Tensor]) -> Apply:
    return weights(lambda tensors: {name: change(tensor) for name, tensor in tensors.items()})


def filled(value: float, part: str = "") -> Apply:
    """Set the first entry of the first tensor whose name contains `part`."""

    def change(tensors: dict) -> dict:
        name = next(name for name in sorted(tensors) if part in name)
        tensors[name].view(-1)[0] = value
        return tensors

    return weights(change)


def without(part: str = "", share: float = 0.0) -> Apply:
    """Remove the tensors whose name contains `part`, or a share of all tensors."""

    def change(tensors: dict) -> dict:
        names = sorted(tensors)
        left_out = {name for name in names if part and part in name}
        if not left_out:
            left_out = set(names[: int(share * len(names))])
        return {name: tensor for name, tensor in tensors.items() if name not in left_out}

    return weights(change)


def linked_out(name: str) -> Apply:
    """Replace a file by a link to a file outside of the folder."""

    def change(folder: Path, canary: Path) -> None:
        outside = folder.with_name(f"outside-{name}")
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)

    return change


def index_of(files: Any) -> Apply:
    """Write the index of a sharded checkpoint.

    files: the file of every tensor, or the whole weight_map.
    """

    def change(folder: Path, canary: Path) -> None:
        shutil.copy(folder / "model.safetensors", folder.with_name("outside.safetensors"))
        names = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        weight_map = {name: files for name in names} if isinstance(files, str) else files
        put(
            folder,
            "model.safetensors.index.json",
            json.dumps({"metadata": {}, "weight_map": weight_map}),
        )

    return change


def header(length: int, text: bytes = b"{}") -> bytes:
    """A safetensors file that declares a header of this length."""
    return struct.pack("<Q", length) + text


def _config(**changes: Any) -> Apply:
    """Change keys of config.json.

    In a reward model built on a language model, change the language model's part.
    """

    def change(folder: Path, canary: Path) -> None:
        trunk = json.loads((folder / "config.json").read_text()).get("trunk")
        if trunk is None:
            edit(folder, "config.json", **changes)
        else:
            edit(folder, "config.json", trunk={**trunk, **changes})

    return change


def _tokenizer(**changes: Any) -> Apply:
    return lambda folder, canary: edit(folder, "tokenizer_config.json", **changes)


def _file(name: str, content: str | bytes) -> Apply:
    return lambda folder, canary: put(folder, name, content)


def _gone(*names: str) -> Apply:
    return lambda folder, canary: [(folder / name).unlink(missing_ok=True) for name in names]


def _cut_weights(folder: Path, canary: Path) -> None:
    put(folder, "model.safetensors", (folder / "model.safetensors").read_bytes()[:-100])


def _weights_as_folder(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def _odd_start_token(folder: Path, canary: Path) -> None:
    """In both files: that of generation_config.json counts first."""
    _config(decoder_start_token_id="x")(folder, canary)
    edit(folder, "generation_config.json", decoder_start_token_id="x")


def _as_file(folder: Path, canary: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


def _empty(folder: Path, canary: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _loop(folder: Path, canary: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder)


SHARED = (  # by policies and reward models
    Hostile("code for an unknown type", coded(auto_map=AUTO_MAP, model_type="evil")),
    Hostile("code and no type", coded(auto_map=AUTO_MAP, model_type=None)),
    Hostile("code of a hub name", coded(auto_map=HUB_MAP, model_type="evil")),
    Hostile("code for a known type", coded(auto_map=AUTO_MAP), refused=False),
    Hostile(
        "code for the tokenizer",
        coded("tokenizer_config.json", auto_map=TOKENIZER_MAP, tokenizer_class="EvilTokenizer"),
        refused=False,
    ),
    Hostile("a pickle", pickled()),
    Hostile("a pickle of torch", torch_pickled),
    Hostile("a pickle beside safetensors", pickled(only=False), refused=False),
    Hostile("pickled arguments", pickled("training_args.bin", only=False), refused=False),
    Hostile("weights behind a link", linked_out("model.safetensors")),
    Hostile("a config behind a link", linked_out("config.json")),
    Hostile("a tokenizer behind a link", linked_out("tokenizer.json")),
    Hostile("an index that leads out", index_of("../outside.safetensors")),
    Hostile("an index of an absolute path", index_of("/etc/passwd")),
    Hostile("an index of nothing", index_of({})),
    Hostile("an index of a list", index_of([1, 2])),
    Hostile("an index of numbers", index_of({"a": 1})),
    Hostile("config empty", _file("config.json", "")),
    Hostile("config a list", _file("config.json", "[]")),
    Hostile("config cut", _file("config.json", '{"model_type": "t5", ')),
    Hostile("config not UTF-8", _file("config.json", b"\xff\xfe")),
    Hostile("config deep", _file("config.json", "[" * 100_000)),
    Hostile("config of 5,000 digits", _file("config.json", '{"d_model": ' + "9" * 5_000 + "}")),
    Hostile("config gone", _gone("config.json")),
    Hostile("type a list", _config(model_type=["t5"])),
    Hostile("type a number", _config(model_type=5)),
    Hostile("type of a picture model", _config(model_type="vit")),
    Hostile("a billion layers", _config(num_layers=10**9)),
    Hostile("layers as text", _config(num_layers="x")),
    Hostile("-1 layers", _config(num_layers=-1)),
    Hostile("9 layers", _config(num_layers=9, num_decoder_layers=9)),
    Hostile("width 0", _config(d_model=0)),
    Hostile("width 2.5", _config(d_model=2.5)),
    Hostile("width 1e30", _config(d_model=10**30)),
    Hostile("width null", _config(d_model=None)),
    Hostile("another width", _config(d_model=24)),
    Hostile("a vocabulary of 1e12", _config(vocab_size=10**12)),
    Hostile("a vocabulary of 5", _config(vocab_size=5)),
    Hostile("an odd dtype", _config(dtype="float9000", torch_dtype="float9000"), refused=False),
    Hostile("an odd start token", _odd_start_token),
    Hostile("quantized", _config(quantization_config=EIGHT_BITS), refused=False),
    Hostile(
        "an odd attention",
        _config(_attn_implementation="evil", attn_implementation="some/repo"),
        refused=False,
    ),
    Hostile("tokenizer gone", _gone("tokenizer.json", "tokenizer_config.json")),
    Hostile("tokenizer empty", _file("tokenizer.json", "{}")),
    Hostile("tokenizer a list", _file("tokenizer.json", "[]")),
    Hostile("tokenizer cut", _file("tokenizer.json", '{"version": "1.0", "model": {')),
    Hostile("tokenizer deep", _file("tokenizer.json", "[" * 100_000)),
    Hostile("tokenizer config a list", _file("tokenizer_config.json", "[]"), refused=False),
    Hostile("tokenizer config a text", _file("tokenizer_config.json", '"x"'), refused=False),
    Hostile("odd lengths", _tokenizer(model_max_length="x"), refused=False),
    Hostile("a pad token of no kind", _tokenizer(pad_token={"a": 1}), refused=False),
    Hostile("NaN weights", filled(float("nan"))),
    Hostile("infinite weights", filled(float("inf"))),
    Hostile("NaN in a late tensor", filled(float("nan"), "layer_norm")),
    Hostile("half of the tensors", without(share=0.5)),
    Hostile("a layer missing", without("decoder")),
    Hostile("other shapes", each_tensor(lambda t: t[:1] if t.dim() > 1 else t)),
    Hostile("whole numbers", each_tensor(lambda t: t.to(torch.int64)), refused=False),
    Hostile("other names", weights(lambda ts: {f"x.{name}": t for name, t in ts.items()})),
    Hostile("more tensors", weights(lambda ts: {**ts, "evil": torch.zeros(3)}), refused=False),
    Hostile("no weights", _gone("model.safetensors")),
    Hostile("empty weights", _file("model.safetensors", b"")),
    Hostile("weights of zeros", _file("model.safetensors", b"\0" * 4_096)),
    Hostile("a header of 2**63 bytes", _file("model.safetensors", header(2**63 - 1))),
    Hostile("a header that is a list", _file("model.safetensors", header(2, b"[]"))),
    Hostile("weights cut", _cut_weights),
    Hostile("weights a folder", _weights_as_folder),
    Hostile("a file for the folder", _as_file),
    Hostile("an empty folder", _empty),
    Hostile("a folder that links to itself", _loop),
    Hostile("generation config a list", _file("generation_config.json", "[]"), refused=False),
    Hostile(
        "generation config of odd types",
        _file("generation_config.json", ODD_GENERATION),
        refused=False,
    ),
    Hostile("an adapter", _file("adapter_config.json", ADAPTER), refused=False),
    Hostile("an adapter a list", _file("adapter_config.json", "[]"), refused=False),
)
TEMPLATE = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
POLICIES = (
    *SHARED,
    Hostile("a template that looks into classes", _tokenizer(chat_template=TEMPLATE)),
    Hostile(
        "a template that does not end",
        _tokenizer(chat_template="{% for i in range(10**12) %}{% endfor %}"),
    ),
    Hostile("a template that is none", _tokenizer(chat_template="{% for %}")),
    Hostile("a template that is a number", _tokenizer(chat_template=5)),
    Hostile(
        "a template of the user's file", _tokenizer(chat_template="{% include '/etc/passwd' %}")
    ),
    Hostile("a template without the prompt", _tokenizer(chat_template="hello"), refused=False),
    Hostile("a template file", _file("chat_template.jinja", TEMPLATE)),
)


SEQUENCE_MODELS = (
    Hostile("no head", without("head")),
    Hostile("NaN in the head", filled(float("nan"), "head")),
)


@dataclass(frozen=True)
class Target:
    """A model of the world and the stage that loads it."""

    name: str
    folder: str
    title: str
    hostile: tuple[Hostile, ...]


TARGETS = (
    Target("policy", "sft", "hostile policy folders", POLICIES),
    Target("sequence", "comp_rm", "hostile reward-model folders", SEQUENCE_MODELS),
    Target("reward", "rel_rm", "hostile reward-model folders", SHARED),
)
CASES = tuple((target, hostile) for target in TARGETS for hostile in target.hostile)


class Folders(Kind):
    """See the module's docstring."""

    name = "folders"
    good = ("refused", "used, no harm")
    bad = ("traceback", "code ran", "accepted", "over 20 s")
    cases = CASES

    def run(self, index: int, folder: Path) -> Outcome:
        target, hostile = self.case(index)
        model, canary = folder / "model", folder / CANARY
        in_child(make_hostile, self.bench.world.folder / target.folder, model, canary, hostile)
        ended = run(
            self._command(target, model, folder), folder, folder / "logs/0.txt", answers="y\n" * 50
        )
        note = (
            f"{target.name}, {hostile.what}: exit {ended.code}, {ended.cpu:.1f}"
            f" s\n{ended.output[-3_000:]}"
        )
        if canary.exists():
            return Outcome("code ran", note, target.title)
        if ended.has_traceback:
            return Outcome("traceback", note, target.title)
        if ended.cpu > 20:
            return Outcome("over 20 s", note, target.title)
        if ended.code == 0 and hostile.refused:
            return Outcome("accepted", note, target.title)
        return Outcome("refused" if ended.code else "used, no harm", note, target.title)

    def _command(self, target: Target, model: Path, folder: Path):
        world = self.bench.world
        if target.name == "policy":
            return world.stage(
                "generate", f"policy={model}", "name=hostile", "max_examples=1", "num_samples=1"
            ).command
        tree = yaml.safe_load(world.config("rl").read_text())
        aspect = {"sequence": "completeness_model"}.get(target.name, "relevance_model")
        tree["reward"] = {aspect: {**tree["reward"][aspect], "ckpt": str(model)}}
        (folder / "rl.yml").write_text(yaml.safe_dump(tree))
        return world.stage(
            "evaluate", f"config={folder / 'rl.yml'}", "max_examples=1", "num_samples=1"
        ).command


def make_hostile(sound: Path, model: Path, canary: Path, hostile: Hostile) -> None:
    """Copy a valid model and make it hostile, in a child because it uses safetensors."""
    shutil.copytree(sound, model)
    shutil.rmtree(model / "samples", ignore_errors=True)
    hostile.apply(model, canary)
