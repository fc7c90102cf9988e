"""A policy as a folder of transformers that every other program reads as the policy was trained."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import read_json, write_json
from fgrlhf.base.shared_messages import print_once

# Settings of a generation config that do not change which response is the best or the likeliest:
# tokens, limits of length, caches, and where the config comes from.
HARMLESS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "do_sample",
    "max_length",
    "max_new_tokens",
    "use_cache",
    "cache_implementation",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict_in_generate",
    "transformers_version",
)
KEPT = ("bos_token_id", "decoder_start_token_id", "use_cache", "cache_implementation")
NEUTRAL = {  # values with which a setting has no effect; None never has one
    "early_stopping": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "length_penalty": 1.0,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "typical_p": 1.0,
}
# Settings of a checkpoint's generation config that force or forbid tokens, or that change what beam
# search looks for. They are not part of the policy, so beam search runs without them.
_BEAM_SETTINGS = (
    "num_return_sequences",
    "length_penalty",
    "early_stopping",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "repetition_penalty",
    "encoder_repetition_penalty",
    "min_length",
    "min_new_tokens",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "sequence_bias",
    "exponential_decay_length_penalty",
)
NEUTRAL_BEAM_SETTINGS = {name: NEUTRAL.get(name) for name in _BEAM_SETTINGS}


def ignored_settings(config: GenerationConfig) -> dict[str, Any]:
    """The settings of a generation config that change responses, and that a policy ignores.

    Sampling has its own settings, and a penalty, a forced or a forbidden token is no part of the
    policy's distribution. `top_k` 0 and flags that are false have no effect.
    """
    found = {}
    for name, value in config.to_diff_dict().items():
        has_effect = value is not None and value is not False and value != NEUTRAL.get(name)
        is_top_k_off = name == "top_k" and value == 0
        if has_effect and not is_top_k_off and name not in HARMLESS and not name.startswith("_"):
            found[name] = value
    return found


@cache  # a run loads a policy several times
def note_ignored(ckpt: str, settings: tuple[str, ...]) -> None:
    """Print which settings of a checkpoint's generation config have no effect here."""
    if settings:
        print_once(
            f"note: the generation config of {shorten(ckpt)} sets {', '.join(settings)}, which"
            " training and evaluation ignore: sampling has its own settings. Folders that are saved"
            " from here leave them out"
        )


def generation_settings(
    config: GenerationConfig, eos_ids: list[int], pad_id: int | None, forced_id: int | None
) -> GenerationConfig:
    """The generation config of a saved policy.

    Args:
      config: of the checkpoint.
      eos_ids: every token that ends a response. Without them, other programs would write on past
        the end of the turn.
      pad_id: the token of padding.
      forced_id: the token with which each response of an encoder-decoder starts, if there is one.
    """
    kept = {name: getattr(config, name, None) for name in KEPT}
    kept = {name: value for name, value in kept.items() if value is not None}
    return GenerationConfig(
        eos_token_id=eos_ids[0] if len(eos_ids) == 1 else eos_ids,
        pad_token_id=pad_id,
        forced_bos_token_id=forced_id,
        **kept,
    )


@contextmanager
def written_with(
    model: PreTrainedModel, generation: GenerationConfig, use_cache: bool | None
) -> Iterator[None]:
    """While the block runs, the model has these settings in its configs.

    The Trainer of transformers sets `use_cache` of a model to false. Saved so, a forward pass of
    the folder's model would return no cache.
    """
    before = model.generation_config
    used = getattr(model.config, "use_cache", None)
    model.generation_config = generation
    if use_cache is not None:
        model.config.use_cache = use_cache
    try:
        yield
    finally:
        model.generation_config = before
        if use_cache is not None:
            model.config.use_cache = used


def check_written(folder: Path) -> None:
    """Raise `UserError` if a folder that was just written lacks its config or its weights."""
    names = [file.name for file in folder.iterdir()]
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise UserError(
            f"{shorten(folder)} was written without the model's config or weights (it has"
            f" {shorten(', '.join(sorted(names)))}): the model must be saved by another version of"
            " transformers; see constraints.txt"
        )


def name_as_before(folder: Path) -> None:
    """Let programs with transformers 4 read a folder that transformers 5 has just written.

    transformers 5 renamed settings, and reads the earlier names as well. transformers 4 ends with
    an error at the new names of a tokenizer. At those of rotary embeddings it takes its default
    base (10,000) without a message, and so computes something else.
    """
    file = folder / "config.json"
    if file.is_file():
        config = read_json(file)
        rope = config.get("rope_parameters") or {}
        if "rope_theta" in rope:  # else each kind of layer has its own
            rest = {name: value for name, value in rope.items() if name != "rope_theta"}
            config["rope_theta"] = rope["rope_theta"]
            if "partial_rotary_factor" in rest:
                config["partial_rotary_factor"] = rest.pop("partial_rotary_factor")
            if rest.get("rope_type", "default") != "default":
                config["rope_scaling"] = rest
            write_json(file, config)
    file = folder / "tokenizer_config.json"
    if file.is_file():
        settings = read_json(file)
        if settings.get("tokenizer_class") == "TokenizersBackend":
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        if isinstance(settings.get("extra_special_tokens"), list):
            settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
        write_json(file, settings)


def forget_last_call(tokenizer) -> None:
    """Reset the padding and truncation that a fast tokenizer keeps from its last call.

    It would save them to tokenizer.json. Programs that read this file themselves would cut texts,
    and a resumed run would not write the same bytes as an uninterrupted one. Every call sets both
    anew, so nothing depends on them.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_padding()
        backend.no_truncation()
