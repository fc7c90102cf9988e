"""Which files hold the weights of a model folder, and what to do if they cannot be read.

Stages read safetensors under transformers' names: `model.safetensors`, or parts with an index.

Folders with the files of an adapter of peft (`adapter_config.json`), which are not models.

transformers puts the adapter of such a folder on the weights beside it and freezes everything else,
whichever model the adapter was trained for. Where the weights hold the adapter already (what
`merge_and_unload().save_pretrained` into the adapter's folder leaves), it acts twice.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import safe_open

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GGUF_SUFFIX = ".gguf"
CONVERT = "convert them once with `fgrlhf data model FOLDER output_dir=...`, which runs none."
# An uncompressed pickle, and the archive in which PyTorch has put one since release 1.6.
PICKLE_STARTS = (b"\x80", b"PK")
# Pickles that trainers write beside the weights.
TRAINING_FILES = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state\w*|random_states_\w+|optim_world_\w+"
    r"|extra_state_\w+)\.(bin|pt|pth|pkl)"
)
ORDINARY_TYPES = ("F64", "F32", "F16", "BF16")  # of weights, in the words of safetensors
# Tensors that files of rounded weights have beside them, or in their place.
OF_ROUNDED = re.compile(
    r"(_scale|_scales|_scale_inv|_packed|_blocks|\.scales|\.qweight|\.qzeros|\.absmax|\.SCB)$"
)
MAX_INSIDE = 3  # folders that a message names
OF_VERL = r"model_world_size_\d+_rank_\d+\.pt"
# ending of a file -> what it is, and what to do
OTHER_FORMATS = {
    r"\.gguf": (
        "GGUF, rounded weights of llama.cpp",
        "name the model from which it was made, or convert the file once with `fgrlhf data model"
        " FILE.gguf output_dir=...`",
    ),
    r"\.onnx": ("ONNX, a graph without training", "name the model from which it was exported"),
    r"model\w*/\w+\.distcp|^\w+\.distcp": (
        "parts of a training on several GPUs (FSDP)",
        "merge them with `accelerate merge-weights FOLDER_OF_PARTS OUT` and put model.safetensors"
        " beside config.json",
    ),
    r"_model_states\.pt": (
        "parts of a training by DeepSpeed",
        "merge them with the zero_to_fp32.py that is beside them (`python zero_to_fp32.py . OUT"
        " --safe_serialization`), and put the result beside config.json",
    ),
    OF_VERL: (
        "parts of a training by verl",
        "merge them with `python -m verl.model_merger merge --backend fsdp --local_dir FOLDER"
        " --target_dir OUT`, and name OUT",
    ),
    r"\.h5": ("weights of TensorFlow", "save them as PyTorch with transformers 4"),
    r"\.msgpack": ("weights of Flax", "save them as PyTorch with transformers 4"),
}


def refuse_other_weights(folder: Path, files: Sequence[Path]) -> None:
    """Refuse a folder with weights of which none is a file of safetensors.

    A folder without any weights passes: it may have a tokenizer only.

    Args:
      files: of the folder.

    Raises:
      ValueError: what the files are, and the way out.
    """
    if any(file.suffix == ".safetensors" for file in files):
        return
    names = sorted(file.name for file in files)
    model_bin = folder / "model.bin"
    if model_bin in files and not _is_pickle(model_bin):
        raise ValueError(
            "its model.bin is no file of PyTorch: CTranslate2 has weights under this name, which"
            " cannot be trained. Name the model from which it was converted."
        )
    found = sorted([*names, *_inner_names(files)], key=lambda name: name.count("/"))
    is_pickled = any(re.fullmatch(r"pytorch_model.*\.bin", name) for name in names)
    for ending, (what, way_out) in OTHER_FORMATS.items() if not is_pickled else ():
        for name in found:
            if re.search(f"({ending})$", name):
                raise ValueError(
                    f"its weights are {shorten(name)} ({what}), but stages read *.safetensors:"
                    f" {way_out}."
                )
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl", ".ckpt"))]
    pickled = [name for name in pickled if not _is_of_training(name)]
    if pickled:
        pickled.sort(key=lambda name: not name.startswith("pytorch_model"))
        first = pickled[0]
        way_out = CONVERT[0].upper() + CONVERT[1:]
        if not first.startswith("pytorch_model"):
            way_out = f"If it holds this model's weights, name it pytorch_model.bin, and {CONVERT}"
        raise ValueError(
            f"its weights are a pickle ({shorten(first)}), which can run code when it is read."
            f" {way_out}"
        )


def refuse_unnamed_weights(folder: Path) -> None:
    """Refuse a folder whose files of safetensors have other names than transformers reads.

    Raises:
      ValueError: the names, and the way out.
    """
    if not folder.is_dir() or (folder / WEIGHTS_FILE).exists() or (folder / INDEX_FILE).exists():
        return
    names = sorted(file.name for file in folder.glob("*.safetensors"))
    if not names:
        way_out = "copy or fetch the whole folder"
        if any(folder.parent.glob("model_world_size_*_rank_*.pt")):
            what, way_out = OTHER_FORMATS[OF_VERL]
            way_out = f"the folder above it has {what}: {way_out}"
        raise ValueError(f"it has no weights ({WEIGHTS_FILE}): {way_out}.")
    if any(re.search(r"-\d+-of-\d+\.safetensors$", name) for name in names):
        raise ValueError(
            f"its weights are in parts ({shorten(names[0])}, {len(names)} in all), but it has no"
            f" {INDEX_FILE}, which says which tensor is in which part: copy or fetch it too."
        )
    raise ValueError(
        f"its weights are under another name ({shorten(', '.join(names))}) than {WEIGHTS_FILE}: if"
        " they are those of its config.json, rename the file."
    )


def check_stored_weights(folder: Path, is_rounded: bool) -> None:
    """Refuse weights that transformers would read wrongly, or with an error that names no file.

    Only the headers of the files are read. Numbers of 8 bits without a description are no weights:
    they were rounded, and their scale is in another tensor under a name that nobody knows.

    Args:
      is_rounded: whether config.json describes weights of a few bits.

    Raises:
      ValueError: a file is missing or damaged, or has weights that are rounded.
    """
    for file in _files_of_weights(folder):
        if not file.exists():
            raise ValueError(
                f"its {INDEX_FILE} names {shorten(file.name)}, which is missing: copy or fetch it"
                " too."
            )
        for name, stored in _stored_types(file).items():
            if name.endswith(".weight") and stored not in ORDINARY_TYPES and not is_rounded:
                raise ValueError(
                    f"its weights are rounded to a few bits ({shorten(name, 80)} in"
                    f" {shorten(file.name)} is {stored}), in a form that its config.json does not"
                    " describe: name the model from which it was made."
                )


def are_ordinary(folder: Path) -> bool:
    """Whether no weight of a folder is rounded, whatever its config.json says."""
    files = [file for file in _files_of_weights(folder) if file.exists()]
    stored = [tensor for file in files for tensor in _stored_types(file).items()]
    return bool(stored) and all(
        (kind in ORDINARY_TYPES or not name.endswith(".weight")) and not OF_ROUNDED.search(name)
        for name, kind in stored
    )


def _files_of_weights(folder: Path) -> list[Path]:
    if (folder / WEIGHTS_FILE).exists() or not (folder / INDEX_FILE).exists():
        return [folder / WEIGHTS_FILE]
    names = read_json(folder / INDEX_FILE)["weight_map"].values()
    return [folder / name for name in sorted(set(names))]


def _stored_types(file: Path) -> dict[str, str]:
    """The types of the tensors in a file of safetensors, by name."""
    try:
        with safe_open(str(file), "pt") as tensors:
            return {name: tensors.get_slice(name).get_dtype() for name in tensors.offset_keys()}
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(
            f"its {shorten(file.name)} is damaged ({shorten(error)}): copy or fetch it again."
        ) from None


def _is_pickle(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(2).startswith(PICKLE_STARTS)
    except OSError:
        return True  # whoever reads it says why it cannot be read


def _inner_names(files: Sequence[Path]) -> list[str]:
    """`FOLDER/NAME` of the files in the folders among `files`."""
    names = []
    for folder in files:
        if folder.is_dir():
            with suppress(OSError):
                names += [f"{folder.name}/{file.name}" for file in folder.iterdir()]
    return names


def models_inside(folder: Path) -> str:
    """A sentence that names the folders directly in a folder which hold a model or an adapter."""
    names = []
    with suppress(OSError, ValueError):
        for inner in sorted(folder.iterdir()):
            is_model = (inner / "config.json").is_file() or (inner / ADAPTER_CONFIG).is_file()
            if is_model and any(inner.glob("*.safetensors")):
                names.append(f"`{shorten(inner)}`")
    if not names:
        return ""
    return f"Name a folder inside it: {', '.join(names[-MAX_INSIDE:])}."


# ---- adapters ------------------------------------------------------------------------------------

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model"  # .safetensors, or the .bin of earlier releases
ADAPTERS_OF_MLX = "*adapters.safetensors"
# Scores beside a language model: files of LLaMA-Factory, and tensors of TRL.
VALUE_HEADS = ("value_head.safetensors", "value_head.bin", "vhead_params.bin")
VALUE_TENSORS = "v_head."


def base_of_adapter(folder: Path) -> str | None:
    """The folder or hub name of the model for which an adapter was trained, if it is named."""
    try:
        config = read_json(folder / ADAPTER_CONFIG)
    except (UserError, OSError):
        return None
    name = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    return name if isinstance(name, str) and name else None


def is_adapter(ckpt: str | Path) -> bool:
    """Whether a checkpoint is the folder of an adapter of peft without the weights of a model."""
    folder = Path(ckpt)
    try:
        names = (ADAPTER_CONFIG, f"{ADAPTER_WEIGHTS}.safetensors")  # a pickle is merged once
        return all((folder / name).is_file() for name in names) and not has_weights(folder)
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return False


def has_weights(folder: Path) -> bool:
    """Whether the folder has weights of a model, besides files of an adapter and its trainer."""
    for file in folder.iterdir():
        is_weights = file.suffix in (".safetensors", ".bin", ".pt", ".pth")
        if is_weights and not _is_of_training(file.name) and file.stem != ADAPTER_WEIGHTS:
            return True
    return False


def _is_of_training(name: str) -> bool:
    """Whether a file has a value head or what a training program keeps besides the model."""
    return name in VALUE_HEADS or TRAINING_FILES.fullmatch(name) is not None


def value_head_in(folder: Path) -> str:
    """Where a folder has scores beside its language model; empty: it has none."""
    for name in VALUE_HEADS:
        if (folder / name).is_file():
            return name
    for file in _files_of_weights(folder):
        if file.is_file() and any(name.startswith(VALUE_TENSORS) for name in _stored_types(file)):
            return f"{VALUE_TENSORS}* of {file.name}"
    return ""


def pickled_head_in(folder: Path) -> str:
    """A sentence about the head of a SetFit model, which is beside its encoder; empty: none."""
    if not (folder / "model_head.pkl").is_file():
        return ""
    return (
        " Its head is model_head.pkl, as of SetFit: a pickle, which can run code when it is read."
        " Name a class of your own that calls SetFit, with `kind: python`."
    )


def refuse_adapter_of_mlx(folder: Path) -> None:
    """Raise `UserError` if an adapter is not of peft but of MLX."""
    if any(folder.glob(ADAPTERS_OF_MLX)) and not any(folder.glob(f"{ADAPTER_WEIGHTS}.*")):
        raise UserError(
            f"`{shorten(folder)}` is an adapter of MLX ({ADAPTERS_OF_MLX}), which no other program"
            " reads: put it on its model with `mlx_lm.fuse --model MODEL --adapter-path FOLDER"
            " --save-path OUT`, and name OUT"
        )


def refuse_adapter(folder: Path) -> None:
    """Raise `UserError` if a folder is an adapter, or holds one beside its weights."""
    if not (folder / ADAPTER_CONFIG).exists():
        return
    refuse_adapter_of_mlx(folder)
    base = base_of_adapter(folder)
    of_base = f" of `{shorten(base)}`" if base else ""
    merge = f"`fgrlhf data model {shorten(folder)} output_dir=...`"
    if not has_weights(folder):
        raise UserError(
            f"`{shorten(folder)}` is an adapter{of_base} ({ADAPTER_CONFIG}), not a whole model:"
            f" merge the two once with {merge}, and name the folder that it writes"
        )
    raise UserError(
        f"`{shorten(folder)}` holds weights and an adapter{of_base} ({ADAPTER_CONFIG}), which would"
        " be applied to these weights, even if they contain it already. If they do, as torchtune's,"
        f" remove {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}.safetensors; if not, merge them once with"
        f" {merge}, and name the folder that it writes"
    )
