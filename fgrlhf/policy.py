"""Policies: one interface over encoder-decoder and decoder-only language models.

`load_policy` chooses the class by the checkpoint's config:

- `EncoderDecoderPolicy` (the paper's `T5Policy`) for encoder-decoders of transformers whose
  attention implementation can be selected (T5, mT5, Flan, BART, Marian, M2M100, ...);
- `CausalPolicy` for decoder-only models with a key-value cache (GPT-2, Llama, Qwen, GPT-NeoX,
  Mistral, ...).

Their common code is in models/base.py; the classes are in models/encoder_decoder.py and
models/causal.py. Other modules import them from here. `load_value` loads the critic of a policy.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.configs.sections import LoRAConfig, PolicyConfig
from fgrlhf.models.base import Policy, name_of
from fgrlhf.models.causal import CausalPolicy
from fgrlhf.models.dialogs import dialog_text
from fgrlhf.models.encoder_decoder import EncoderDecoderPolicy, T5Policy
from fgrlhf.models.loading import (
    SAFE,
    check_vocabulary,
    load_config,
    load_generation_config,
    load_tokenizer,
    load_weights,
    name_decoder_start,
)
from fgrlhf.models.lora import add_adapters, has_adapters
from fgrlhf.models.model_files import base_of_adapter, is_adapter, models_inside
from fgrlhf.models.provenance import read_source
from fgrlhf.models.saving import ignored_settings, note_ignored
from fgrlhf.models.top_layers import check_top_layers
from fgrlhf.models.trial import check_logits, check_special_tokens
from fgrlhf.models.trunk import freeze_other_inputs
from fgrlhf.reward_models.network_config import LanguageModelScorerConfig, shape_of_config
from fgrlhf.text_types import SYSTEM, Prompt
from fgrlhf.value import Value, saved_critic

__all__ = [
    "CausalPolicy",
    "EncoderDecoderPolicy",
    "Policy",
    "T5Policy",
    "check_prompts_fit",
    "count_cut",
    "cut_prompts",
    "load_policy",
    "load_value",
]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


# ---- loading -------------------------------------------------------------------------------------


def _way_out(ckpt: str | Path) -> str:
    """What to name instead of a folder without a model."""
    policies = [Path(ckpt) / name for name in ("best", "final")]
    existing = [f"`{shorten(folder)}`" for folder in policies if folder.is_dir()]
    if existing:
        return f"It is the folder of a run, whose policies are {' and '.join(existing)}."
    if not (Path(ckpt) / "config.json").exists() and models_inside(Path(ckpt)):
        return models_inside(Path(ckpt))
    return "Give a folder that an earlier stage wrote, or a hub name while online."


def trained_policy(settings: PolicyConfig, empty: bool = False) -> Policy:
    """The policy that a config trains, with its adapters or frozen layers; see `load_policy`."""
    return load_policy(
        settings.ckpt,
        "fp32",
        settings.max_input_len,
        settings.input_padding_side,
        settings.chat_template,
        settings.lora,
        empty,
        settings.train_top_layers,
        settings.decoder_prefix,
    )


def whole_policy(
    settings: PolicyConfig, ckpt: str | Path, dtype: str = "fp32", empty: bool = False
) -> Policy:
    """A policy that reads prompts as the one that a config trains; see `load_policy`."""
    return load_policy(
        ckpt,
        dtype,
        settings.max_input_len,
        settings.input_padding_side,
        settings.chat_template,
        empty=empty,
        decoder_prefix=settings.decoder_prefix,
    )


def load_policy(
    ckpt: str | Path,
    dtype: str = "fp32",
    max_input_len: int = 1024,
    padding_side: str | None = None,
    chat_template: bool | None = None,
    lora: LoRAConfig | None = None,
    empty: bool = False,
    top_layers: int | None = None,
    decoder_prefix: str | None = None,
) -> Policy:
    """Load a policy; the checkpoint's config determines its class.

    If `model.kernels` is known, call `fgrlhf.kernels.choice.use_kernels` first.

    Args:
      ckpt: a folder or hub name, or the folder of an adapter of peft, which is merged with the
        model that it names.
      dtype: of the weights: "fp32" or "bf16".
      max_input_len: longer prompts are cut at their end; dialogs first lose their oldest turns.
      padding_side: side on which prompts are padded; None: the default of the class.
      chat_template: see `load_chat_template` in models/chat.py.
      lora: settings of the adapters; None: no adapters.
      empty: do not read the weights, which stay on the meta device; enough to find every error in
        the settings, and for the processes that receive their part of a sharded model.
      top_layers: train only these top layers of the model; None: all of it.
      decoder_prefix: tokens that the decoder reads before every response
        (models/encoder_decoder.py); None: those of the checkpoint.

    Raises:
      UserError: the checkpoint does not exist, cannot be read, or does not match the other
        arguments.
    """
    model, tokenizer = _load_model_and_tokenizer(ckpt, DTYPES[dtype], empty)
    freeze_other_inputs(model)
    if top_layers is not None:  # before the adapters, which are put on these layers
        check_top_layers(model, top_layers, "train_top_layers")
    if lora is not None:
        add_adapters(model, lora, top_layers)

    policy = _make_policy(
        model, tokenizer, max_input_len, padding_side, chat_template, decoder_prefix
    )
    policy.source = read_source(ckpt)
    note_ignored(str(ckpt), tuple(ignored_settings(model.generation_config)))
    if empty:
        return policy
    if top_layers is not None:
        policy.train_top_layers(top_layers)
    check_special_tokens(policy)
    check_logits(policy)
    return policy


def load_value(
    ckpt: str | Path | None,
    policy: Policy,
    freeze: bool = False,
    share: bool = False,
    dtype: str = "fp32",
    top_layers: int | None = None,
    same_ckpt: bool = False,
    empty: bool = False,
    aspects: Mapping[str, float] | None = None,
) -> Value:
    """Load the critic that a config describes.

    Args:
      ckpt: folder or hub name of the trunk, or the folder of a critic that a run has saved; with
        `share`, such a folder or None.
      policy: the policy, whose token ids the trunk must be able to read.
      freeze: train only the head.
      share: use the policy's trunk.
      dtype: of the trunk's weights.
      top_layers: train only these top layers of the trunk; None: all of it.
      same_ckpt: whether the policy was loaded from `ckpt` too. If it trains as many top layers, the
        trunk shares its frozen ones.
      empty: do not read the trunk's weights, as in `load_policy`.
      aspects: as in `Value`.

    Raises:
      UserError: the trunk cannot be loaded, or cannot read the policy's token ids; or a saved
        critic has another trunk or other outputs.
    """
    saved = None if ckpt is None else saved_critic(ckpt, share, aspects)
    if share:
        value = Value(policy.hidden_size, aspects=aspects)
        if ckpt is not None and saved is not None:
            value.start_from(Path(ckpt), saved)
        return value
    if ckpt is None:
        raise ValueError("a critic needs a checkpoint, or the policy's trunk")
    has_same_frozen = (
        policy.frozen_layers is not None and policy.frozen_layers.n_trained == top_layers
    )
    if same_ckpt and has_same_frozen and not has_adapters(policy):
        return Value(policy.hidden_size, policy.copy_sharing_frozen(), freeze, aspects)
    # no chat template: the trunk reads the policy's token ids
    trunk = load_policy(
        ckpt,
        dtype,
        policy.max_input_len,
        chat_template=False,
        empty=empty,
        top_layers=top_layers,
        decoder_prefix=policy.decoder_prefix,
    )
    same_class = type(trunk) is type(policy)
    same_vocabulary = trunk.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    reads_all_ids = trunk.num_embeddings >= policy.num_embeddings
    if not (same_class and same_vocabulary and reads_all_ids):
        raise UserError(
            f"the value model `{ckpt}` ({type(trunk).__name__}, {trunk.num_embeddings}"
            f" embeddings) cannot read the policy's tokens ({type(policy).__name__},"
            f" {policy.num_embeddings} embeddings): their vocabularies differ. Use a trunk of the"
            " policy's family, or set model.value_model.policy_value_sharing=true"
        )
    value = Value(trunk.hidden_size, trunk, freeze, aspects)
    if saved is not None:
        value.start_from(Path(ckpt), saved)
    return value


def _load_model_and_tokenizer(
    ckpt: str | Path, dtype: torch.dtype, empty: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The language model of a checkpoint, and its tokenizer.

    Raises:
      UserError: the checkpoint does not exist, cannot be read, or has no language model.
    """
    base = base_of_adapter(Path(ckpt)) if is_adapter(ckpt) else None
    if base is not None and empty:
        return _load_model_and_tokenizer(base, dtype, empty)
    try:
        config = load_config(ckpt if base is None else base)
        _refuse_classifier(config)
        if shape_of_config(config) == "encoder":
            raise ValueError(
                f"it is an encoder ({config.model_type}), which reads in both directions and cannot"
                " generate text."
            )
        config.get_text_config()  # raises ValueError if there are several (MusicGen)
        if base is not None:
            return _merge_start(Path(ckpt), base, dtype)
        if config.is_encoder_decoder:
            name_decoder_start(ckpt, config)
        tokenizer = load_tokenizer(ckpt)
        auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        if empty:
            model = _without_weights(auto_class, ckpt, config, dtype)
        else:
            model = load_weights(auto_class, ckpt, config=config, dtype=dtype)
        check_vocabulary(tokenizer, model)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no language model could be loaded from `{shorten(ckpt)}`: {error} {_way_out(ckpt)}"
        ) from None
    return model, tokenizer


def _merge_start(
    adapter: Path, base: str, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The language model of an adapter's folder, with the adapter merged, and its tokenizer."""
    from fgrlhf.data.merge_adapter import merged_model  # few starts are adapters

    with tempfile.TemporaryDirectory() as work:
        model, tokenizer, _ = merged_model(adapter, base, Path(work))
    _refuse_classifier(model.config)
    if model.config.is_encoder_decoder:
        name_decoder_start(base, model.config)
    model.requires_grad_(True)  # peft had frozen it
    model.name_or_path = str(adapter)  # the model with its adapter, as transformers reads it too
    return model.to(dtype=dtype), tokenizer  # pyright: ignore[reportCallIssue]


def _refuse_classifier(config: PretrainedConfig) -> None:
    """Raise `ValueError` for a model with labels or scores in place of the next token."""
    architectures = config.architectures
    architecture = (
        str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    )
    kinds = {
        "ForSequenceClassification": ("sequence", "sequence_scorer"),
        "ForTokenClassification": ("token", "segment_classifier"),
    }
    if config.model_type == LanguageModelScorerConfig.model_type:
        raise ValueError(
            "it is a reward model of this library, which judges texts and writes none: use it as a"
            " reward, and name the language model here."
        )
    for ending, (what, kind) in kinds.items():
        if architecture.endswith(ending):
            raise ValueError(
                f"it is a {what} classifier ({architecture}), which judges texts and writes none:"
                f" use it as a reward (kind: {kind}), and name the language model here."
            )


def _make_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_input_len: int,
    padding_side: str | None,
    chat_template: bool | None,
    decoder_prefix: str | None,
) -> Policy:
    """The policy of the model's class. Arguments as in `load_policy`.

    Raises:
      UserError: the arguments do not match the model.
    """
    is_encoder_decoder = model.config.is_encoder_decoder
    if decoder_prefix and not is_encoder_decoder:
        raise UserError(
            f"decoder_prefix is {shorten(repr(decoder_prefix), 40)}, but {name_of(tokenizer)} is a"
            " decoder-only model, which reads everything before the response as its prompt: put the"
            " words into the prompts, and leave decoder_prefix out"
        )
    if is_encoder_decoder:
        return EncoderDecoderPolicy(
            model, tokenizer, max_input_len, padding_side, chat_template, decoder_prefix
        )
    return CausalPolicy(model, tokenizer, max_input_len, padding_side, chat_template)


def _without_weights(
    auto_class: type, ckpt: str | Path, config: PretrainedConfig, dtype: torch.dtype
) -> PreTrainedModel:
    """The model of a folder, with tensors on the meta device, which use no memory.

    Raises:
      ValueError: the config does not describe a model.
    """
    vars(config).pop("quantization_config", None)  # the weights will be ordinary ones
    try:
        with torch.device("meta"):
            model = auto_class.from_config(config, dtype=dtype, **SAFE)
    except Exception as error:  # a config can contain anything, so building can raise anything
        raise ValueError(
            f"its config describes no language model ({type(error).__name__}: {shorten(error)})."
        ) from None
    model.generation_config = load_generation_config(ckpt)  # the tokens that end a response
    return model


# ---- long prompts --------------------------------------------------------------------------------


def count_cut(policy: Policy, prompts: Sequence[Prompt]) -> int:
    """The length of `cut_prompts`. Raises `UserError` if a prompt has no tokens."""
    return len(cut_prompts(policy, prompts))


def cut_prompts(policy: Policy, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts that are too long for the policy, which cuts them.

    Raises:
      UserError: a prompt has no tokens.
    """
    lengths = checked_lengths(policy, prompts)
    return [prompt for prompt, length in zip(prompts, lengths) if length > policy.max_input_len]


def checked_lengths(policy: Policy, prompts: Sequence[Prompt]) -> list[int]:
    """Tokens of each prompt before it is cut.

    Raises:
      UserError: a prompt has no tokens.
    """
    lengths = policy.prompt_lengths(prompts)
    for prompt, length in zip(prompts, lengths):
        if length == 0:
            raise UserError(
                f"prompt {shorten(prompt.id, 80)} has no tokens (its text is"
                f" {shorten(repr(prompt.text), 80)}), so there is nothing to respond to: remove it"
                " from the data"
            )
    return lengths


def check_prompts_fit(
    policy: Policy,
    prompts: Sequence[Prompt],
    core_text: Callable[[Prompt], str],
    file: str | Path,
    quiet: bool = False,
    response_tokens: int | None = None,
) -> int:
    """Print how many prompts exceed the policy's input limit, and return that number.

    Such prompts are cut at their end, but never within their `core_text`. A dialog loses its oldest
    turns instead. Its system message and its last message stay whole.

    Args:
      core_text: prompt -> the beginning of its text that must not be cut.
      file: where the prompts come from, for messages.
      quiet: print nothing.
      response_tokens: tokens of the longest response to them; None: not known yet.
    Raises:
      UserError: a prompt has no tokens or would lose a part of its core text, or prompts and
        responses need more positions than the model has.
    """
    lengths = checked_lengths(policy, prompts)
    if response_tokens is not None:
        longest = min(max(lengths, default=0), policy.max_input_len)
        policy.check_fits(longest, response_tokens)
    cut = [prompt for prompt, length in zip(prompts, lengths) if length > policy.max_input_len]
    lengths = policy.prompt_lengths([_core(prompt, core_text) for prompt in cut])
    too_long = [place for place, length in enumerate(lengths) if length > policy.max_input_len]
    if too_long:
        first = too_long[0]
        rows = "the row" if len(too_long) == 1 else f"the {len(too_long)} rows that are too long"
        raise UserError(
            f"{file}, row {shorten(cut[first].id, 80)}: the part that must not be cut has"
            f" {lengths[first]} tokens, but max_input_len is {policy.max_input_len}: set"
            f" max_input_len={max(lengths)} or more, or remove {rows}"
        )
    if cut and not quiet:
        lost = "oldest turns" if cut[0].messages else "ends"
        print(
            f"{len(cut)} of {len(prompts)} prompts of {file} are longer than"
            f" max_input_len={policy.max_input_len} tokens: their {lost} were cut",
            flush=True,
        )
    return len(cut)


def _core(prompt: Prompt, core_text: Callable[[Prompt], str]) -> Prompt | str:
    """What must not be cut: of a dialog, its system message and its last message."""
    if not prompt.messages:
        return core_text(prompt)
    system = [message for message in prompt.messages[:1] if message[0] == SYSTEM]
    kept = (*system, prompt.messages[-1])
    return Prompt(prompt.id, dialog_text(kept), messages=kept)
