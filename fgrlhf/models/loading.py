"""Loading model folders safely: no code is run, no pickle is read, no tensor is missing.

transformers fills missing tensors with random numbers, offers to run Python files of a model's
folder, and reads pickles. A folder may come from anywhere, so every policy, critic and reward model
is loaded by these functions. They raise `ValueError` with the reason in one sentence; the caller
adds the setting that names the folder and the way out.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from fgrlhf.base.errors import shorten
from fgrlhf.models.model_files import (
    INDEX_FILE,
    OF_ROUNDED,
    are_ordinary,
    check_stored_weights,
    pickled_head_in,
    refuse_adapter,
    refuse_other_weights,
    refuse_unnamed_weights,
)
from fgrlhf.models.tokenizer_file import follow_its_file, take_template_of_processor

SAFE = {"trust_remote_code": False}
# More than any published model has. A config with 1e9 layers would never finish loading.
MAX_LAYERS = 1_000
MAX_NUMBER = 2**31 - 1
LAYER_KEYS = (
    "num_layers",
    "num_decoder_layers",
    "num_hidden_layers",
    "n_layer",
    "encoder_layers",
    "decoder_layers",
)
MAX_NAMES = 3  # of tensors, in a message
# Formats of rounded weights that transformers can turn into ordinary ones.
DEQUANTIZED = ("fp8", "mxfp4")
LFS_POINTER = b"version https://git-lfs"  # how it begins
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def load_config(path: str | Path, **changes: Any) -> PretrainedConfig:
    """The config of a folder or hub name, with `changes`, so that a text has one result.

    `max_position_embeddings` is the limit of its length also where a family has another name for it
    (MPT: `max_seq_len`). LayerDrop skips whole layers at random in training. Log-probabilities
    would change from one forward pass to the next, and DDP fails if parameters get no gradient.
    Experts of Switch Transformers and NLLB-MoE take every token: with a limit, scoring a whole text
    leaves tokens out that sampling, token by token, does not. BigBird has full attention: its
    sparse one turns into it for good when the first short text is read. Weights that are rounded to
    8 or 4 bits become ordinary ones. Attention is computed as transformers would by default.

    Raises:
      ValueError: the reason.
    """
    _check_folder(path)
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "config.json")):
        raise ValueError("it has no config.json, so it is not the folder of a model.")
    with _reason_in_one_sentence(path):
        config = AutoConfig.from_pretrained(path, **SAFE, **changes)
    check_sizes(config)
    config._attn_implementation = None  # a choice of the machine that saved it
    _dequantize(path, config)
    for key in config.to_dict():
        if key.endswith("layerdrop"):  # BART has one for each stack
            setattr(config, key, 0.0)
    if hasattr(config, "expert_capacity"):
        config.expert_capacity = MAX_NUMBER
    if hasattr(config, "moe_eval_capacity_token_fraction"):
        config.moe_eval_capacity_token_fraction = 0.0  # `expert_capacity` in evaluation too
    if getattr(config, "attention_type", None) == "block_sparse":
        config.attention_type = "original_full"
    if config.model_type == "dbrx" and config.attn_config.clip_qkv is None:
        config.attn_config.clip_qkv = MAX_NUMBER  # its class needs a limit
    if hasattr(config, "max_seq_len") and not hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = config.max_seq_len
    return config


def _dequantize(path: str | Path, config: PretrainedConfig) -> None:
    """Let transformers make ordinary weights of rounded ones. Raises `ValueError` if it cannot.

    Unsloth has written merged weights of 16 bits beside the config of their base of 4 bits.
    """
    rounding = getattr(config, "quantization_config", None)
    if rounding is None:
        return
    if os.path.isdir(path) and are_ordinary(Path(path)):
        delattr(config, "quantization_config")
        return
    settings = rounding if isinstance(rounding, dict) else rounding.to_dict()
    method = settings.get("quant_method")
    if method not in DEQUANTIZED:
        raise ValueError(
            f"its weights are rounded to a few bits (quant_method {shorten(repr(method), 40)} in"
            f" its config.json), and only those of {' and '.join(DEQUANTIZED)} can be made"
            " ordinary again: name the model from which it was made."
        )
    config.quantization_config = {**settings, "dequantize": True}


def load_generation_config(path: str | Path) -> GenerationConfig:
    """The generation config of a folder or hub name; without such a file, that of config.json.

    A model that transformers loads has the same.

    Raises:
      ValueError: the reason.
    """
    with _reason_in_one_sentence(path):
        try:
            return GenerationConfig.from_pretrained(path)
        except OSError:  # there is no such file
            return GenerationConfig.from_pretrained(
                path, config_file_name="config.json", _from_model_config=True
            )


def name_decoder_start(path: str | Path, config: PretrainedConfig) -> None:
    """Set `decoder_start_token_id` of an encoder-decoder's config as `generate` starts a decoder.

    It takes the start token of the generation config, or else its beginning of a text. The class's
    own config has the token only if both are missing there: as its start token or, in T5Gemma, as
    the decoder's beginning of a text. It stays None if there is none at all.

    Raises:
      ValueError: the reason why the generation config cannot be read.
    """
    generation = load_generation_config(path)
    candidates = (
        generation.decoder_start_token_id,
        generation.bos_token_id,
        getattr(config, "decoder_start_token_id", None),
        getattr(getattr(config, "decoder", None), "bos_token_id", None),
    )
    config.decoder_start_token_id = next((c for c in candidates if c is not None), None)


def check_vocabulary(tokenizer, model: Any) -> None:
    """Raise `ValueError` if the tokenizer has tokens without an embedding in the model."""
    try:  # not all embeddings are a single table
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # CANINE has none: it hashes characters
        rows = None
    largest = max(tokenizer.get_vocab().values(), default=0)
    if rows is not None and largest >= rows:
        raise ValueError(
            f"its tokenizer has tokens up to number {largest}, but the network has only {rows}"
            " embeddings: they belong to different models, or a token was added without"
            " `resize_token_embeddings`."
        )


def max_positions(config: PretrainedConfig, stack: Literal["encoder", "decoder"]) -> int | None:
    """The most tokens that a stack can read; None: no limit.

    LED has a number for each stack. XLNet has -1, because its positions are relative. A model with
    LongRoPE (Phi-3) is limited to its original length: one longer text would change the positions
    of all texts of its batch.
    """
    positions = getattr(config, "max_position_embeddings", None)
    positions = getattr(config, f"max_{stack}_position_embeddings", positions)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        positions = rope["original_max_position_embeddings"]
    return positions if positions is not None and positions > 0 else None


def load_tokenizer(path: str | Path):
    """The tokenizer of a folder or hub name. Raises `ValueError` with the reason.

    Its ids are those of the folder's tokenizer.json (tokenizer_file.py).
    """
    _check_folder(path)
    with _reason_in_one_sentence(path):
        tokenizer = AutoTokenizer.from_pretrained(path, **SAFE)
        tokenizer = follow_its_file(path, tokenizer)
        take_template_of_processor(path, tokenizer)
        vocabulary = set(tokenizer.get_vocab())
        added = set(tokenizer.all_special_tokens) | set(tokenizer.get_added_vocab())
    # without the vocabulary's files, transformers makes a vocabulary of special tokens and a space
    if len(vocabulary - added) < 2:
        raise ValueError("its tokenizer has no vocabulary: tokenizer.json is missing or empty.")
    max_length = tokenizer.model_max_length
    is_number = isinstance(max_length, int | float) and not isinstance(max_length, bool)
    if not is_number or not max_length > 0:
        raise ValueError(
            f"its tokenizer_config.json has model_max_length={shorten(repr(max_length), 40)}, which"
            " is not a length."
        )
    return tokenizer


def load_weights(
    model_class: Any,
    path: str | Path,
    may_lack: Sequence[str] = (),
    new_head: bool = False,
    exact: bool = False,
    **arguments: Any,
) -> PreTrainedModel:
    """`model_class.from_pretrained(path, **arguments)` with every tensor read from safetensors.

    Args:
      model_class: a model class of transformers, or one of its Auto classes.
      path: a folder or hub name.
      may_lack: prefixes of tensors that may be missing or have another size, such as those that the
        caller brings along. Tied tensors are stored once and never count as missing, nor do
        constants (Marian's positions).
      new_head: training starts from this checkpoint, so tensors outside the base model, and its
        pooler, may be missing or have another size; they then get the class's random weights.
      exact: the checkpoint was saved from this very class, so tensors that the config does not
        require are rejected too.
      arguments: for `from_pretrained`. Without a config, it is that of `load_config`.

    Raises:
      ValueError: the folder cannot be read, lacks tensors, holds tensors of other shapes, or holds
        weights that are not finite.
    """
    _check_folder(path)
    if "config" not in arguments:
        arguments["config"] = load_config(path)
    was_rounded = getattr(arguments["config"], "quantization_config", None) is not None
    if os.path.isdir(path):
        refuse_unnamed_weights(Path(path))
        check_stored_weights(Path(path), was_rounded)
    with _reason_in_one_sentence(path):
        model, report = model_class.from_pretrained(
            path,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below
            **SAFE,
            **arguments,
        )
    if getattr(model, "_hf_peft_config_loaded", False):  # of a hub name
        raise ValueError(
            "it holds an adapter (adapter_config.json), which transformers has put on its weights:"
            " merge the two once with `fgrlhf data model OWNER/NAME output_dir=...`."
        )
    sizes = {name: shapes for name, *shapes in report["mismatched_keys"]}
    random = set(report["missing_keys"]) | set(sizes)
    if new_head:
        base = f"{model.base_model_prefix}."
        in_base = {name for name in random if name.startswith(base)}
        in_pooler = {name for name in random if name.startswith(f"{base}pooler.")}
        random = in_base - in_pooler
    random -= constants_of(model)
    missing = sorted(name for name in random if not name.startswith(tuple(may_lack)))
    if missing:
        raise ValueError(_partly_random(path, missing, sizes, report["unexpected_keys"]))
    _check_ordinary(model, report["unexpected_keys"])
    if was_rounded:
        model._weight_conversions = None  # they would round the weights again when they are saved
    extra = sorted(report["unexpected_keys"]) if exact else []
    if extra:
        raise ValueError(
            f"its weights hold {len(extra)} tensors that its config does not require"
            f" ({_some(extra)}), so it is not the model that was saved."
        )
    check_finite(model)
    return model


def _partly_random(
    path: str | Path,
    missing: Sequence[str],
    sizes: Mapping[str, Sequence[Any]],
    unexpected: Iterable[str],
) -> str:
    """Why a model would be partly random. `sizes`: what is stored and required of some tensors."""
    for name in missing:
        if name in sizes:
            stored, required = (tuple(shape) for shape in sizes[name])
            return (
                f"its weights and its config belong to different models: {shorten(name, 100)} has"
                f" the size {stored}, but the config requires {required}."
            )
    return (
        f"its weights lack {len(missing)} of the tensors that its config requires"
        f" ({_some(missing)}), so the model would be partly random."
        f"{_under_another_name(missing, unexpected)}{pickled_head_in(Path(path))}"
    )


def _check_ordinary(model: PreTrainedModel, unexpected: Iterable[str]) -> None:
    """Raise `ValueError` if the weights are rounded, so that a scale is missing in the model."""
    rounded = [name for name in unexpected if OF_ROUNDED.search(name)]
    rounded += [name for name, p in model.named_parameters() if p.dtype not in FLOATS]
    if rounded:
        raise ValueError(
            f"its weights are rounded to a few bits ({_some(sorted(rounded))}), in a form that its"
            " config.json does not describe: name the model from which it was made."
        )


def _under_another_name(missing: Sequence[str], unexpected: Iterable[str]) -> str:
    """Where the file has the missing tensors, if one prefix stands before the names of all."""
    found = set(unexpected)
    ends = [name for name in found if name.endswith(f".{missing[0]}")]
    for prefix in sorted(end.removesuffix(missing[0]) for end in ends):
        if all(f"{prefix}{name}" in found for name in missing):
            return (
                f" Its file has them with `{shorten(prefix, 40)}` before each name, which the"
                " program that saved it put there: save the weights of the model itself, or remove"
                " it from the names."
            )
    return f" Its file has others instead ({_some(sorted(found))})." if found else ""


def constants_of(model: PreTrainedModel) -> set[str]:
    """Names of parameters that are computed and never trained: sinusoidal position embeddings."""
    names = set()
    for name, module in model.named_modules():
        if type(module).__name__.endswith("SinusoidalPositionalEmbedding"):
            names |= {f"{name}.{parameter}" for parameter, _ in module.named_parameters()}
    return names


def width_of_states(config: PretrainedConfig) -> int:
    """Width of a language model's last hidden states, which heads read.

    OPT-350m projects them to the width of its embeddings, which is not that of its layers. T5Gemma
    has a config for each stack, and the heads read the decoder.
    """
    config = config.get_text_config()
    return getattr(config, "word_embed_proj_dim", None) or config.hidden_size


def _check_folder(path: str | Path) -> None:
    """Refuse a model folder with links out of it, with only pickled weights, or with code to run.

    A hub name is left to transformers, which gets the same switches.

    Raises:
      ValueError: the reason.
      UserError: it holds an adapter, whose way out differs.
    """
    try:
        folder = Path(path)
        is_file = folder.is_file()
        if not is_file and not folder.is_dir():
            return
        files = [] if is_file else list(folder.iterdir())
    except (OSError, ValueError) as error:
        raise ValueError(f"the folder cannot be read: {shorten(error)}.") from None
    if is_file:
        raise ValueError(f"it is a file, but a model is a folder: give {shorten(folder.parent)}.")
    for file in files:
        if file.is_symlink() and not (file.exists() and _stays_inside(file, folder)):
            where = "that leads out of the folder" if file.exists() else "to a file that is missing"
            raise ValueError(
                f"its file {shorten(file.name)} is a symbolic link {where}: copy the folder with"
                " the files themselves (`cp -rL`)."
            )
    _check_complete(files)
    refuse_adapter(folder)
    _check_index(folder)
    refuse_other_weights(folder, files)
    _check_code(folder)


def _check_complete(files: Sequence[Path]) -> None:
    """Refuse a pointer of Git LFS in place of a file, and damaged settings of its generation.

    transformers leaves the latter out, and takes the end of a response from config.json instead.
    """
    for file in files:
        if not file.is_file():
            continue
        with file.open("rb") as stream:
            if stream.read(len(LFS_POINTER)) == LFS_POINTER:
                raise ValueError(
                    f"its file {shorten(file.name)} is a pointer of Git LFS, without the content:"
                    " fetch it with `git lfs pull` in the folder."
                )
        if file.name == "generation_config.json":
            _read_object(file)


def _stays_inside(link: Path, folder: Path) -> bool:
    """Whether a link ends in its own folder, or in the `blobs` folder of the hub's cache."""
    target = link.resolve()
    home = folder.resolve()
    in_hub_cache = home.parent.name == "snapshots" and target.parent == home.parent.parent / "blobs"
    return target.is_relative_to(home) or in_hub_cache


def _check_index(folder: Path) -> None:
    """Refuse a sharded checkpoint whose index names files outside its folder."""
    path = folder / INDEX_FILE
    if not path.exists():
        return
    files = _read_object(path).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(f"its {INDEX_FILE} has no `weight_map` from tensors to files.")
    for name in set(files.values()):
        if Path(name).name != name:
            raise ValueError(
                f"its {INDEX_FILE} names {shorten(name)}, which is not a file of the folder."
            )


def _check_code(folder: Path) -> None:
    """Refuse a model for which transformers has no class: it would run code of its folder."""
    path = folder / "config.json"
    if not path.exists():
        return
    config = _read_object(path)
    if "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING:
        raise ValueError(
            f"its model type {shorten(repr(config.get('model_type')))} needs Python code from the"
            " folder (`auto_map`), and code of a model folder is never run."
        )


def _read_object(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"its {path.name} is not valid JSON: {shorten(error)}.") from None
    if not isinstance(content, dict):
        raise ValueError(
            f"its {path.name} must be a JSON object, but it is a {type(content).__name__}."
        )
    return content


def check_sizes(config: PretrainedConfig) -> None:
    """Refuse a config with impossible sizes. Raises `ValueError` naming the key."""
    _check_sizes(config.to_dict())


def _check_sizes(values: dict) -> None:
    for key, value in values.items():
        if isinstance(value, dict):  # the config of a part of the model
            _check_sizes(value)
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        key = str(key)
        counts_layers = key.endswith("layers") or key == "n_layer"
        limit = MAX_LAYERS if counts_layers else MAX_NUMBER
        if abs(value) > limit:
            raise ValueError(
                f"its config has {key}={shorten(value, 40)}, which is more than {limit}."
            )
        if (counts_layers and value < 0) or (key in LAYER_KEYS and value == 0):
            raise ValueError(f"its config has {key}={value}: a model has one layer or more.")


@torch.no_grad()
def check_finite(model: PreTrainedModel) -> None:
    """Raise `ValueError` if a weight is NaN or infinite."""
    damaged = [name for name, tensor in model.named_parameters() if not _is_finite(tensor)]
    if damaged:
        raise ValueError(
            f"{len(damaged)} of its tensors hold NaN or infinity ({_some(damaged)}): the training"
            " that wrote it diverged."
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    # a sum is one pass without a copy, but it can overflow although all entries are finite
    if bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
        return True
    return bool(torch.isfinite(tensor).all())


def _some(names: Sequence[str]) -> str:
    shown = [shorten(name, 80) for name in names[:MAX_NAMES]]
    if len(names) > MAX_NAMES:
        shown.append("...")
    return ", ".join(shown)


@contextmanager
def _reason_in_one_sentence(path: str | Path):
    """Turn any error of transformers, tokenizers or safetensors into a `ValueError`.

    The files can contain anything, so the errors can be anything. A panic of tokenizers is not even
    an `Exception`.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise ValueError(_sentence(path, error)) from None


def _sentence(path: str | Path, error: BaseException) -> str:
    text = str(error).strip()
    # transformers treats a path that does not exist as a hub name; its message would mislead
    looks_like_folder = str(path).count("/") > 1 and not Path(path).exists()
    if looks_like_folder and isinstance(error, OSError | ValueError):
        return "there is no such folder."
    if "trust_remote_code" in text or "custom code" in text:
        return "it needs its own Python code, and code of a model is never run."
    if "backend tokenizer" in text:
        return "it has no tokenizer that can be read: tokenizer.json is missing or damaged."
    if "couldn't connect to" in text and not os.path.exists(path):
        return (
            "there is no such folder, the Hugging Face hub cannot be reached, and its cache has no"
            " such model."
        )
    if "use_safetensors" in text:
        return (
            "it has no safetensors. If its weights are pickled, convert them once with"
            " `fgrlhf data model OWNER/NAME`, where there is a network, and name the folder that it"
            " writes."
        )
    kind = type(error).__name__
    if isinstance(error, json.JSONDecodeError):
        return f"one of its JSON files is damaged ({shorten(text, 200)}): copy or fetch it again."
    if not text:
        return f"its files are damaged ({kind})."
    first_line = shorten(text.splitlines()[0], 300)
    if isinstance(error, OSError | ValueError | RuntimeError):
        return first_line
    return f"its files are damaged ({kind}: {first_line})."
