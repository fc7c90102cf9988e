"""Merge an adapter of peft with the model for which it was trained, once.

    fgrlhf data model outputs/lora_adapter output_dir=outputs/models/merged

Trainers that use LoRA write a folder of an adapter only (`adapter_config.json`), which names its
model. The merged model is an ordinary folder, which every stage and every other program reads:

    W' = W + scale * B A        for the weight W of each adapted layer

The folder appears by one rename once it is complete, so an interruption leaves nothing behind.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.data.convert_model import COPIED, read_tensors
from fgrlhf.models.loading import load_config, load_tokenizer, load_weights
from fgrlhf.models.model_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, base_of_adapter
from fgrlhf.models.source import ModelSource
from fgrlhf.runs.checkpoint import new_folder
from fgrlhf.runs.stage import hold

MODEL_CLASSES: dict[str, Any] = {
    "CAUSAL_LM": AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": AutoModelForSeq2SeqLM,
    "SEQ_CLS": AutoModelForSequenceClassification,
    "TOKEN_CLS": AutoModelForTokenClassification,
}
HEADS = ("score.weight", "classifier.weight", "classifier.out_proj.weight")  # one row per label


def merge_adapter(adapter: str | Path, folder: str | Path, base: str | None = None) -> Path:
    """The model of an adapter's folder, with the adapter merged, as a folder of transformers.

    Args:
      base: folder or hub name of the model for which it was trained; None: the one that it names.

    Raises:
      UserError: the adapter or its model cannot be read, they do not fit, it cannot be merged, or
        `folder` exists.
    """
    adapter, folder = Path(adapter), Path(folder)
    if os.path.lexists(folder):
        raise UserError(
            f"{shorten(folder)} exists: use it, remove it, or name another one with output_dir=..."
        )
    base = base or base_of_adapter(adapter)
    if base is None:
        raise UserError(
            f"{adapter / ADAPTER_CONFIG} does not name the model for which the adapter was trained"
            " (base_model_name_or_path): name it with base=..."
        )
    with hold(folder.parent), new_folder(folder) as temporary:
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            model, tokenizer = _merged(adapter, base, Path(name))
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        ModelSource(base, f"with the adapter {adapter.name} merged").save(temporary)
    print(f"{folder}: {base} with the adapter of {adapter} merged", flush=True)
    return folder


def _merged(adapter: Path, base: str, work: Path) -> tuple[PreTrainedModel, Any]:
    """The merged model and its tokenizer. `work`: a folder for copies."""
    tensors = _adapter_tensors(adapter)
    plain = work / "adapter"
    plain.mkdir()
    shutil.copyfile(adapter / ADAPTER_CONFIG, plain / ADAPTER_CONFIG)
    save_file(tensors, plain / f"{ADAPTER_WEIGHTS}.safetensors", metadata={"format": "pt"})
    source = base
    if Path(base).is_dir() and Path(base).resolve() == adapter.resolve():
        source = str(_without_adapter(adapter, work / "base"))  # its own weights are the model
    try:
        config = PeftConfig.from_pretrained(str(plain))
        model = _base_model(source, str(config.task_type or ""), tensors)
        tokenizer: Any = _tokenizer(adapter, source, work / "tokenizer")
        _resize(model, tensors)
        peft_model: Any = PeftModel.from_pretrained(model, str(plain))
        _check_all_read(peft_model, tensors)
        return peft_model.merge_and_unload(safe_merge=True), tokenizer
    except UserError:
        raise
    except Exception as error:  # the files can contain anything, so peft can raise anything
        raise UserError(
            f"the adapter {shorten(adapter)} cannot be merged with `{shorten(base)}`"
            f" ({type(error).__name__}: {shorten(error)}): check that it was trained for this"
            " model, or name the right one with base=..."
        ) from None


def _adapter_tensors(adapter: Path) -> dict[str, Tensor]:
    """The tensors of an adapter's folder. Raises `UserError` if they cannot be read."""
    file = adapter / f"{ADAPTER_WEIGHTS}.safetensors"
    pickled = adapter / f"{ADAPTER_WEIGHTS}.bin"
    if not file.is_file() and pickled.is_file():
        return read_tensors(pickled)
    try:
        return load_file(file)
    except Exception as error:  # a damaged file can raise anything
        raise UserError(
            f"{shorten(file)} cannot be read ({type(error).__name__}: {shorten(error)}): copy the"
            " adapter's folder again"
        ) from None


def _without_adapter(folder: Path, copy: Path) -> Path:
    """A copy of a folder without the files of its adapter; weights are linked where possible."""
    copy.mkdir()
    for file in folder.iterdir():
        if not file.is_file() or file.stem in (ADAPTER_WEIGHTS, Path(ADAPTER_CONFIG).stem):
            continue
        try:
            os.link(file.resolve(), copy / file.name)
        except OSError:
            shutil.copyfile(file, copy / file.name)
    return copy


def _tokenizer(adapter: Path, source: str, copy: Path) -> Any:
    """The adapter's own tokenizer, which may have new tokens; without one, that of its model."""
    if not (adapter / "tokenizer_config.json").exists():
        return load_tokenizer(source)
    copy.mkdir()
    for pattern in COPIED:
        for file in adapter.glob(pattern):
            if file.name != ADAPTER_CONFIG:
                shutil.copyfile(file, copy / file.name)
    return load_tokenizer(copy)


def _base_model(base: str, task: str, tensors: dict[str, Tensor]) -> PreTrainedModel:
    """The model without the adapter; a new head gets its size from the adapter's own."""
    config = load_config(base)
    default = "SEQ_2_SEQ_LM" if config.is_encoder_decoder else "CAUSAL_LM"
    model_class = MODEL_CLASSES.get(task or default)
    if model_class is None:
        raise UserError(
            f"the adapter's task_type is {shorten(task, 40)}, but only"
            f" {', '.join(MODEL_CLASSES)} can be merged here: merge it with peft"
        )
    has_head = task.endswith("_CLS")
    if has_head:
        heads = [tensor for name, tensor in tensors.items() if name.endswith(HEADS)]
        if not heads:
            raise UserError(
                "the adapter has no tensor of the head that gives the score (modules_to_save), so"
                " the scores would be random: save it again with its head"
            )
        config.num_labels = heads[0].shape[0]
    return load_weights(model_class, base, new_head=has_head, config=config, dtype=torch.float32)


def _resize(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Give the embeddings as many rows as those that the adapter brings along."""
    for name, tensor in tensors.items():
        rows: Any = model.get_input_embeddings().weight
        is_table = name.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight"))
        if is_table and len(tensor) != len(rows):
            model.resize_token_embeddings(len(tensor))


def _check_all_read(model: Any, tensors: dict[str, Tensor]) -> None:
    """Raise `UserError` if the model has no place for a tensor of the adapter."""
    names = {name.replace(".default.", ".") for name in model.state_dict()}
    names |= {name.replace(".modules_to_save.", ".") for name in names}
    unread = sorted(name for name in tensors if name not in names)
    if unread:
        raise UserError(
            f"the model has no place for {len(unread)} of the adapter's {len(tensors)} tensors"
            f" ({shorten(unread[0], 100)}): name the model for which it was trained with base=..."
        )
