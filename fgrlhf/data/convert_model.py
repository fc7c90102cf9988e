"""Convert a model whose weights are pickled (`pytorch_model.bin`) to safetensors, once.

    fgrlhf data model facebook/nllb-200-distilled-600M output_dir=outputs/models/nllb

Many older models of the hub have no safetensors, and stages read nothing else. The pickle is read
by PyTorch's restricted reader (`weights_only=True`), which builds tensors and plain containers and
runs no code of the file. All other files are copied as they are; a model that needs code of its own
is refused when it is loaded.

The folder appears by one rename once it is complete, so an interruption leaves nothing behind.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import save_file
from torch import Tensor

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json
from fgrlhf.models.model_files import models_inside, refuse_other_weights
from fgrlhf.models.provenance import ModelSource
from fgrlhf.runs.checkpoint import new_folder
from fgrlhf.runs.stage import hold

WEIGHTS = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
# What DistributedDataParallel and `torch.compile` put before the names of a model's tensors.
WRAPPERS = ("module.", "_orig_mod.")
COPIED = ["*.json", "*.txt", "*.model", "*.jinja"]  # configs and tokenizers


def convert_model(name: str, folder: str | Path) -> Path:
    """The model of a hub name or folder, as a folder with safetensors.

    Raises:
      UserError: the model cannot be fetched, has no `pytorch_model.bin`, its weights cannot be read
        without running code, or `folder` exists.
    """
    folder = Path(folder)
    if os.path.lexists(folder):
        raise UserError(
            f"{shorten(folder)} exists: use it, remove it, or name another one with output_dir=..."
        )
    source, origin = _source_folder(name)
    files = _weight_files(source, name)
    with hold(folder.parent), new_folder(folder) as temporary:
        tensors: dict[str, Tensor] = {}
        for file in files:
            print(f"converting {file.name}", flush=True)
            tensors |= read_tensors(file)
        tensors = without_wrappers(tensors)
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        for pattern in COPIED:
            for file in source.glob(pattern):
                if file.name != INDEX:
                    shutil.copyfile(file, temporary / file.name)
        ModelSource(name, f"{origin}, converted from {WEIGHTS}").save(temporary)
    print(f"{folder}: {name}, {len(tensors)} tensors", flush=True)
    return folder


def _source_folder(name: str) -> tuple[Path, str]:
    """The folder with the model's files, and where they come from."""
    if Path(name).is_dir():
        return Path(name), "folder"
    if Path(name).is_file():
        raise UserError(
            f"{shorten(name)} is a file, but a model is a folder: give {shorten(Path(name).parent)}"
        )
    try:
        snapshot = snapshot_download(name, allow_patterns=[*COPIED, "pytorch_model*.bin"])
    except Exception as error:  # the connection and its libraries can raise anything
        raise UserError(
            f"{shorten(name)} is no folder and cannot be fetched from the hub"
            f" ({type(error).__name__}: {shorten(error)}): run the command on a machine with a"
            " network, and copy the folder that it writes"
        ) from None
    return Path(snapshot), f"hub, revision {Path(snapshot).name}"


def _weight_files(source: Path, name: str) -> list[Path]:
    """The files with the weights of a folder. Raises `UserError` if one of them is missing."""
    files = [source / WEIGHTS]
    if (source / INDEX).is_file():
        files = [source / file_name for file_name in _indexed_names(source / INDEX)]
    for file in files:
        if not file.is_file():
            _refuse_other_weights(source, name)
            way_out = (
                "If it has *.safetensors, a stage reads it by its name; one of its GGUF files is"
                " named hub:OWNER/NAME/FILE.gguf"
            )
            raise UserError(
                f"{shorten(name)} has no {file.name}, so there is nothing to convert. "
                + (models_inside(source) or way_out)
            )
    return files


def _refuse_other_weights(source: Path, name: str) -> None:
    """Raise `UserError` if the weights of a folder have another format or name."""
    try:
        refuse_other_weights(source, list(source.iterdir()))
    except ValueError as error:
        raise UserError(f"{shorten(name)} cannot be converted: {error}") from None


def without_wrappers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without what `WRAPPERS` put before the names of all of them."""
    for wrapper in WRAPPERS:
        if tensors and all(name.startswith(wrapper) for name in tensors):
            print(f"`{wrapper}` is removed from the names of all tensors", flush=True)
            return without_wrappers(
                {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}
            )
    return tensors


def _indexed_names(index_file: Path) -> list[str]:
    """The names of the files that an index lists, without repetition.

    Raises:
      UserError: it lists none, or something else than names of files in its own folder.
    """
    index = read_json(index_file)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    are_names = all(isinstance(name, str) and Path(name).name == name for name in names)
    if not names or not are_names:
        raise UserError(
            f"{index_file} has no `weight_map` from tensors to files: fetch the model again"
        )
    return sorted(set(names))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, each with memory of its own: safetensors stores no shared ones."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile pickle can raise anything
        raise UserError(
            f"{file} cannot be read without running its code ({shorten(json.dumps(str(error)))}),"
            " so it is not read"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{file} holds a {type(content).__name__}, not named tensors")
    _refuse_training_checkpoint(file, content)
    tensors = {}
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise UserError(f"{file}: `{shorten(name)}` is not a tensor")
        tensors[name] = value.detach().clone().contiguous()
    return tensors


def _refuse_training_checkpoint(file: Path, content: dict) -> None:
    """Raise `UserError` if the weights are in an entry of the file, beside others of a training."""
    places = [str(name) for name, value in content.items() if _is_named_tensors(value)]
    if not places:
        return
    shown = ", ".join(f"`{shorten(place, 40)}`" for place in places[:3])
    first = repr(shorten(places[0], 40))
    raise UserError(
        f"{file} is a checkpoint of a training: its weights are under {shown}. Save them alone:"
        f' c = torch.load("{WEIGHTS}", weights_only=True); torch.save(c[{first}], "{WEIGHTS}")'
    )


def _is_named_tensors(value: Any) -> bool:
    """Whether this is a dict of one tensor or more, by their names."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(name, str) and isinstance(v, Tensor) for name, v in value.items())
    )
