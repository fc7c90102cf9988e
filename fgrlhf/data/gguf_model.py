"""Convert a model in a GGUF file, the format of llama.cpp, to a folder of transformers, once.

    fgrlhf data model path/to/model.Q8_0.gguf output_dir=outputs/models/mine
    fgrlhf data model hub:OWNER/NAME/model.Q8_0.gguf base=OWNER/NAME

transformers reads such a file, but refuses to save what it has read. It also leaves out, without a
word, what it does not know: how positions beyond a first length are scaled (Llama 3.1, YaRN), and
how a byte-level tokenizer divides a text before it looks for tokens. A file with such a setting is
refused, unless `base` names the model from which it was made: then only the weights are the file's.

Weights of a few bits are de-quantised: they are stored as fp32 and stay as coarse as they were.
"""

import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import hf_hub_download
from tokenizers.pre_tokenizers import ByteLevel, Digits
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.integrations.gguf.reader import read_gguf_metadata
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
from transformers.modeling_gguf_pytorch_utils import GGUF_TO_TRANSFORMERS_MAPPING as READ

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.data.read import HUB
from fgrlhf.models.loading import (
    check_finite,
    check_vocabulary,
    constants_of,
    load_config,
    load_tokenizer,
)
from fgrlhf.models.provenance import ModelSource
from fgrlhf.runs.checkpoint import new_folder
from fgrlhf.runs.stage import hold

NO_MODELS = ("general", "tokenizer")  # groups of keys, among transformers' architectures
ARCHITECTURES = sorted({*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_CONFIG_ARCHS} - {*NO_MODELS})
# Other names of an architecture in the table of transformers.
RENAMED = {
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}
# What a byte-level tokenizer divides as GPT-2's does, and with each digit by itself (llama.cpp,
# src/llama-vocab.cpp). transformers divides both as GPT-2's.
AS_GPT2 = ("gpt-2", "gpt2", "phi-2", "olmo", "mpt")
DIGITS_ALONE = ("smollm", "starcoder", "refact", "command-r")
# Keys that repeat the sizes of tensors, which are compared.
SIZES = (
    "attention.key_length",
    "attention.value_length",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
)


def convert_gguf(name: str, folder: str | Path, base: str | None = None) -> Path:
    """The model of a GGUF file, as a folder with safetensors in fp32 and a tokenizer.

    Args:
      name: the path of a file, or `hub:OWNER/NAME/FILE.gguf`.
      folder: to write; it must not exist.
      base: see `read_gguf`.

    Raises:
      UserError: the file cannot be fetched or converted, or `folder` exists.
    """
    folder = Path(folder)
    if os.path.lexists(folder):
        raise UserError(
            f"{shorten(folder)} exists: use it, remove it, or name another one with output_dir=..."
        )
    file = _file_of(name)
    with hold(folder.parent), new_folder(folder) as temporary:
        network, tokenizer = read_gguf(file, base)
        print(f"writing {folder}", flush=True)
        with quiet_without_terminal():
            network.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        rest = f", config and tokenizer of {base}" if base else ""
        ModelSource(name, f"GGUF, weights de-quantised{rest}").save(temporary)
    count = network.num_parameters()
    print(f"{folder}: {name}, {type(network).__name__}, {count:,} parameters", flush=True)
    return folder


def read_gguf(file: Path, base: str | None = None) -> tuple[PreTrainedModel, Any]:
    """The de-quantised network in fp32 and the tokenizer of a GGUF file.

    Args:
      base: folder or hub name of the model from which the file was made. Its config and its
        tokenizer are used instead of what transformers reads from the file.

    Raises:
      UserError: transformers does not read the file, or not all that the model computes.
    """
    metadata, tensors = _header(file)
    _check_architecture(file, metadata)
    print(f"reading {file.name}: {len(tensors)} tensors", flush=True)
    with tempfile.TemporaryDirectory() as alone:  # transformers reads configs beside the file too
        os.symlink(file.resolve(), Path(alone) / file.name)
        where: dict[str, Any] = {
            "pretrained_model_name_or_path": alone,
            "gguf_file": file.name,
        }
        try:
            if base is None:
                config = AutoConfig.from_pretrained(**where)
                _check_all_is_read(file, metadata, tensors, config)
                tokenizer = _tokenizer(file, metadata, config, where)
            else:
                config, tokenizer = load_config(base), load_tokenizer(base)
            network = _network(config, where)
            check_vocabulary(tokenizer, network)
        except UserError:
            raise
        except Exception as error:  # readers of a binary format can raise anything
            raise UserError(
                f"{file.name} cannot be converted ({type(error).__name__}: {shorten(error)}):"
                " download it again; if it is whole,"
                f" {_way_out(metadata) if base is None else 'check that it was made from base'}"
            ) from None
    return network, tokenizer


def _file_of(name: str) -> Path:
    """The file of a path, or of a hub name, which is downloaded unless the hub's cache has it."""
    if not name.startswith(HUB):
        return Path(name)
    owner, _, rest = name.removeprefix(HUB).partition("/")
    repository, _, file = rest.partition("/")
    if not (owner and repository and file):
        raise UserError(f"{shorten(name)} names no file: write hub:OWNER/NAME/FILE.gguf")
    try:
        return Path(hf_hub_download(f"{owner}/{repository}", file))
    except Exception as error:  # the connection and its libraries can raise anything
        raise UserError(
            f"{shorten(name)} cannot be fetched from the hub ({type(error).__name__}:"
            f" {shorten(error)}): check the name, or run the command on a machine with a network"
            " and copy the folder that it writes"
        ) from None


# ---- what the file says --------------------------------------------------------------------------


def _header(file: Path) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The metadata, with the length of a list instead of a list of texts; names of the tensors."""
    if not file.is_file():
        raise UserError(f"{shorten(file)} does not exist: check the path")
    try:
        metadata, tensors = read_gguf_metadata(str(file))
        architecture = metadata["general.architecture"]
    except Exception as error:  # readers of a binary format can raise anything
        raise UserError(
            f"{file.name} cannot be converted: it is not a GGUF file, or it is damaged"
            f" ({shorten(error)}). Download it again"
        ) from None
    if metadata.get("split.count", 1) > 1:
        raise UserError(
            f"{file.name} is one of {metadata['split.count']} parts of a model: merge them with"
            " `llama-gguf-split --merge FIRST_PART OUT.gguf` of llama.cpp, and name OUT.gguf"
        )
    if not isinstance(architecture, str):
        raise UserError(f"{file.name} names no architecture: download it again")
    return metadata, tensors


def _check_architecture(file: Path, metadata: Mapping[str, Any]) -> None:
    architecture = metadata["general.architecture"]
    if RENAMED.get(architecture, architecture) not in ARCHITECTURES:
        raise UserError(
            f"{file.name} has the architecture `{shorten(architecture, 40)}`, which transformers"
            f" {transformers.__version__} does not read from GGUF (it reads"
            f" {', '.join(ARCHITECTURES)}): name the model from which it was made"
            f"{_origin(metadata)}, by its hub name or folder, instead of this file"
        )


def _check_all_is_read(
    file: Path, metadata: Mapping[str, Any], tensors: tuple[str, ...], config: PretrainedConfig
) -> None:
    """Raise `UserError` if the file has a setting of its network that `config` does not hold."""
    architecture = metadata["general.architecture"]
    unread = [name for name in tensors if name.startswith("rope_")]
    read = READ["config"].get(RENAMED.get(architecture, architecture), {})
    for key, value in metadata.items():
        group, _, setting = key.partition(".")
        if group != architecture or architecture in GGUF_CONFIG_ARCHS or setting in SIZES:
            continue
        is_default = getattr(config, setting.rpartition(".")[2], None) == value
        if setting == "rope.dimension_count":
            is_default = _rotated(config) == value
        elif setting == "rope.scaling.type":
            is_default = value == "none"
        if read.get(setting) is None and not is_default:
            unread.append(f"{key}={value}")
    if unread:
        raise UserError(
            f"{file.name} has settings that transformers {transformers.__version__} does not read"
            f" ({shorten(', '.join(unread), 200)}), so the converted model would compute something"
            f" else: {_way_out(metadata)}"
        )


def _rotated(config: PretrainedConfig) -> int:
    """The number of dimensions of a head that a config rotates by the position."""
    values = config.to_dict()
    size = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    rope = values.get("rope_parameters") or {}
    return int(size * rope.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0)))


def _way_out(metadata: Mapping[str, Any]) -> str:
    return (
        "add base=MODEL, the folder or hub name of the model from which it was made"
        f"{_origin(metadata)}, whose config and tokenizer are then used"
    )


def _origin(metadata: Mapping[str, Any]) -> str:
    """` (its header names OWNER/NAME)`, or nothing."""
    for key in ("general.base_model.0.repo_url", "general.source.repo_url"):
        url = metadata.get(key)
        if isinstance(url, str) and url.startswith("https://huggingface.co/"):
            return f" (its header names {shorten(url.removeprefix('https://huggingface.co/'), 80)})"
    return ""


# ---- network and tokenizer -----------------------------------------------------------------------


def _network(config: PretrainedConfig, where: Mapping[str, Any]) -> PreTrainedModel:
    """The network in fp32, ready to be saved. Raises `ValueError` if a tensor is not in the file.

    transformers calls every network of a GGUF file quantised, and refuses to save it.
    """
    network_class: Any = AutoModelForCausalLM
    if config.is_encoder_decoder:
        network_class = AutoModelForSeq2SeqLM
    with quiet_without_terminal():
        network, report = network_class.from_pretrained(
            **where,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    mismatched = {name for name, *_ in report["mismatched_keys"]}
    random = sorted((set(report["missing_keys"]) | mismatched) - constants_of(network))
    if random:
        raise ValueError(
            f"{len(random)} tensors of {type(network).__name__} are not in the file, or have"
            f" another size there: {shorten(', '.join(random), 200)}"
        )
    check_finite(network)
    network.hf_quantizer = None
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    return network.eval()


def _tokenizer(
    file: Path, metadata: Mapping[str, Any], config: PretrainedConfig, where: Mapping[str, Any]
) -> Any:
    """The tokenizer of the file, which divides a text as the file says."""
    division = metadata.get("tokenizer.ggml.pre")
    is_byte_level = metadata.get("tokenizer.ggml.model") == "gpt2"
    if is_byte_level and division not in {*AS_GPT2, *DIGITS_ALONE, *GGUF_PRE_TOKENIZER_SPLITS}:
        raise UserError(
            f"the tokenizer of {file.name} divides texts by the rule"
            f" `{shorten(division, 40)}` (tokenizer.ggml.pre), which transformers"
            f" {transformers.__version__} does not know, so its tokens would be others than in"
            f" training: {_way_out(metadata)}"
        )
    print("reading its tokenizer, which takes minutes where it is large", flush=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(**where)
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None:
        tokenizer.model_max_length = limit
    if is_byte_level and division in DIGITS_ALONE:
        steps = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizers(steps)
    return tokenizer


@contextmanager
def quiet_without_terminal() -> Iterator[None]:
    """Hide the progress bars of transformers where they would fill a log file."""
    if sys.stderr.isatty():
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield
