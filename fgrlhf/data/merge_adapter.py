"""Merge an adapter of peft with the model for which it was trained, once.

    fgrlhf data model outputs/lora_adapter output_dir=outputs/models/merged

Trainers that use LoRA write a folder of an adapter only (`adapter_config.json`), which names its
model. The merged model is an ordinary folder, which every stage and every other program reads:

    W' = W + scale * B A        for the weight W of each layer that LoRA adapts

Other adapters of peft that can be merged (DoRA, IA3, LoHa, LoKr, VeRA, trained tokens) are merged
too. The written folder is loaded again: it must compute what the model with its adapter does.

The folder appears by one rename once it is complete, so an interruption leaves nothing behind.
"""

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.data.convert_model import COPIED, read_tensors
from fgrlhf.models.loading import check_vocabulary, load_config, load_tokenizer, load_weights
from fgrlhf.models.model_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    VALUE_HEADS,
    base_of_adapter,
    refuse_adapter_of_mlx,
)
from fgrlhf.models.provenance import ModelSource
from fgrlhf.models.saving import name_as_before
from fgrlhf.runs.checkpoint import new_folder
from fgrlhf.runs.stage import hold

MODEL_CLASSES: dict[str, Any] = {
    "CAUSAL_LM": AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": AutoModelForSeq2SeqLM,
    "SEQ_CLS": AutoModelForSequenceClassification,
    "TOKEN_CLS": AutoModelForTokenClassification,
}
# endings of the class that `auto_mapping` names where no task is given
TASKS = {
    "ForCausalLM": "CAUSAL_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
}
HEADS = (  # weights with one row per label
    "score.weight",
    "classifier.weight",
    "classifier.out_proj.weight",
    "classification_head.out_proj.weight",
    "logits_proj.weight",
)
ROOT = "base_model.model."  # before the names of an adapter's tensors
TRIED_TOKENS = 32  # of the vocabulary, in the comparison of both models
CHANGE = 1e-3  # a smaller difference, relative to the largest output, is rounding


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
    refuse_adapter_of_mlx(adapter)
    base = base or base_of_adapter(adapter)
    if base is None:
        raise UserError(
            f"{adapter / ADAPTER_CONFIG} does not name the model for which the adapter was trained"
            " (base_model_name_or_path): name it with base=..."
        )
    with hold(folder.parent), new_folder(folder) as temporary:
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            model, tokenizer, expected = merged_model(adapter, base, Path(name))
        model.save_pretrained(temporary)
        model_class = type(model)
        del model  # there may be memory for one of them only
        tokenizer.save_pretrained(temporary)
        name_as_before(temporary)
        for head in VALUE_HEADS:  # of a reward model or critic of LLaMA-Factory
            if (adapter / head).is_file():
                shutil.copyfile(adapter / head, temporary / head)
        _check_written(temporary, model_class, expected, adapter)
        ModelSource(base, f"with the adapter {adapter.name} merged").save(temporary)
    print(f"{folder}: {base} with the adapter of {adapter} merged", flush=True)
    return folder


def merged_model(adapter: Path, base: str, work: Path) -> tuple[PreTrainedModel, Any, Tensor]:
    """The merged model in fp32, its tokenizer, and what the model computes with its adapter.

    Args:
      base: folder or hub name of the model for which the adapter was trained.
      work: a folder for copies.

    Raises:
      UserError: the adapter or its model cannot be read, they do not fit, or it cannot be merged.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft, on tied weights: the result is compared
        return _merged(adapter, base, work)


def _merged(adapter: Path, base: str, work: Path) -> tuple[PreTrainedModel, Any, Tensor]:
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
        if obstacle := _obstacle(config):
            raise UserError(f"the adapter {shorten(adapter)} {obstacle}")
        model = _base_model(source, _task(config), tensors)
        tokenizer: Any = _tokenizer(adapter, source, work / "tokenizer")
        _resize(model, tensors)
        check_vocabulary(tokenizer, model)
        peft_model: Any = PeftModel.from_pretrained(model, str(plain)).eval()
        _check_all_read(peft_model, tensors)
        expected = _outputs(peft_model, model)
        _untie(model, tensors)
        merged = peft_model.merge_and_unload(safe_merge=True)
        _check_outputs(merged, expected, f"the model with the adapter {shorten(adapter)} merged")
        return merged, tokenizer, expected
    except UserError:
        raise
    except Exception as error:  # the files can contain anything, so peft can raise anything
        raise UserError(
            f"the adapter {shorten(adapter)} cannot be merged with `{shorten(base)}`"
            f" ({type(error).__name__}: {shorten(error)}). If it was trained for another model,"
            " name that one with base=... of `fgrlhf data model`"
        ) from None


def _obstacle(config: Any) -> str:
    """Why an adapter with this config cannot be merged, and the way out; empty: it can."""
    if config.is_prompt_learning:
        return (
            f"is a trained prompt ({config.peft_type}), which no weights can hold: train LoRA"
            " adapters instead"
        )
    if getattr(config, "alora_invocation_tokens", None):
        return (
            "acts only after certain tokens (aLoRA), which no weights can hold: train LoRA adapters"
            " instead"
        )
    if getattr(config, "layer_replication", None):
        return (
            "reads layers of its model twice (layer_replication), with other changes each time,"
            " which the weights of one layer cannot hold: train it without"
        )
    start = str(getattr(config, "init_lora_weights", None))
    if start.startswith("pissa_niter"):
        return (
            f"belongs to weights that were changed at its start by random numbers ({start}), which"
            " no file has: save it with `save_pretrained(...,"
            " path_initial_model_for_weight_conversion=FOLDER_OF_THE_START)`, which makes it an"
            " ordinary LoRA adapter, or train it with init_lora_weights=pissa"
        )
    return ""


@torch.no_grad()
def _outputs(model: Any, config_of: PreTrainedModel) -> Tensor:
    """What a model computes of tokens from its whole vocabulary, the last ones included.

    Args:
      config_of: the same model, without a wrapper.
    """
    config = config_of.config
    end = config.get_text_config().eos_token_id
    end = end[0] if isinstance(end, list) else end
    rows: Any = config_of.get_input_embeddings().weight
    ids = [i for i in torch.linspace(0, len(rows) - 1, TRIED_TOKENS).long().tolist() if i != end]
    if isinstance(end, int) and end < len(rows):
        ids.append(end)  # classifiers of BART read the last one
    ids_1L = torch.tensor([ids])
    is_generator = config.is_encoder_decoder and hasattr(config_of, "lm_head")
    decoder_inputs = {"decoder_input_ids": ids_1L} if is_generator else {}
    return model(input_ids=ids_1L, **decoder_inputs).logits


def _check_written(folder: Path, model_class: Any, expected: Tensor, adapter: Path) -> None:
    """Raise `UserError` if the folder's model does not compute what is expected."""
    what = f"the model with the adapter {shorten(adapter)} merged"
    try:
        model = load_weights(model_class, folder, config=load_config(folder), dtype=torch.float32)
    except ValueError as error:
        raise UserError(
            f"{what} cannot be loaded as transformers writes it ({error}): use another model"
        ) from None
    _check_outputs(model, expected, what)


def _check_outputs(model: PreTrainedModel, expected: Tensor, what: str) -> None:
    """Raise `UserError` if a merged model does not compute what is expected."""
    outputs = _outputs(model.eval(), model)
    is_same = outputs.shape == expected.shape
    if is_same:
        is_same = bool((outputs - expected).abs().max() <= CHANGE * expected.abs().max())
    if not is_same:
        raise UserError(
            f"{what} computes something else than with the adapter on it: some of its tensors are"
            " of layers that share weights with others, or that the model does not read. Train it"
            " without these layers"
        )


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
    brought = [name.removeprefix(ROOT) for name in tensors] if has_head else ()
    try:
        return load_weights(model_class, base, brought, config=config, dtype=torch.float32)
    except ValueError as error:
        if not has_head:
            raise
        raise UserError(
            f"the model `{shorten(base)}` of the adapter cannot be loaded: {error} The training may"
            " have started such layers, a pooler for instance, from random weights, and the adapter"
            " does not have them: train it again with them in modules_to_save"
        ) from None


def _task(config: PeftConfig) -> str:
    """The task of an adapter: the one that it names, or that of its model's class."""
    if config.task_type:
        return str(config.task_type)
    name = str((config.auto_mapping or {}).get("base_model_class", ""))
    return next((task for ending, task in TASKS.items() if name.endswith(ending)), "")


def _resize(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Give the embeddings as many rows as those that the adapter brings along."""
    tables = _tables(model)
    rows = len(model.get_input_embeddings().weight)  # pyright: ignore[reportArgumentType]
    for name, tensor in tensors.items():
        layer = name.removeprefix(ROOT).removesuffix(".weight").removesuffix(".base_layer")
        if layer in tables and len(tensor) != rows:
            rows = len(tensor)
            model.resize_token_embeddings(rows)


def _untie(model: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Give the output layer weights of its own if LoRA changes it or the embeddings.

    An adapter on one of two layers with common weights changes this layer only, but merged it would
    change both.
    """
    layers = [model.get_output_embeddings(), model.get_input_embeddings()]
    output, embeddings = (getattr(layer, "base_layer", layer) for layer in layers)
    tables = tuple(f"{ROOT}{name}." for name in _tables(model))
    is_adapted = any(name.startswith(tables) and ".lora_" in name for name in tensors)
    if is_adapted and output is not None and output.weight is embeddings.weight:
        output.weight = nn.Parameter(embeddings.weight.detach().clone())


def _tables(model: PreTrainedModel) -> set[str]:
    """The names of the embeddings and the output layer."""
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    return {name for name, module in model.named_modules() if module in tables}


def _check_all_read(model: PeftModel, tensors: dict[str, Tensor]) -> None:
    """Raise `UserError` if the adapter has a tensor that the model did not load."""
    own = get_peft_model_state_dict(model, save_embedding_layers=False)
    own = {**model.state_dict(), **own}
    own |= {name.replace(".default.", "."): tensor for name, tensor in own.items()}
    own |= {name.replace(".modules_to_save.", "."): tensor for name, tensor in own.items()}
    unread = []
    for name, tensor in sorted(tensors.items()):
        if name not in own or own[name].shape != tensor.shape:
            unread.append(name)
    if unread:
        raise UserError(
            f"the model has no place for {len(unread)} of the adapter's {len(tensors)} tensors"
            f" ({shorten(unread[0], 100)}): name its own model with base=... of"
            " `fgrlhf data model`"
        )
