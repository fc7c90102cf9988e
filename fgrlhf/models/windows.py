"""Lengths from which on a model computes something else: windows, chunks, sparse attention.

A model that is right for short texts can be wrong for longer ones: the attention of a layer sees
only the last tokens, a recurrent layer reads a text in chunks, an indexer chooses the tokens that
are seen. The config has these lengths, under a name of its own in every family.
"""

from collections.abc import Iterator
from typing import Any, Literal

from transformers import PretrainedConfig, PreTrainedModel

from fgrlhf.models.loading import max_positions
from fgrlhf.models.trunk import text_config

KEYS = (
    "attention_chunk_size",
    "attention_window",
    "attention_window_size",
    "block_size",
    "chunk_size",
    "global_block_size",
    "index_topk",
    "keep_window_size",
    "local_attention",
    "local_radius",
    "mamba_chunk_size",
    "sliding_window",
    "sliding_window_size",
    "window_size",
)
ATTENTION_LAYERS = frozenset({"attention", "full_attention", "sliding_attention"})
# The chunk of linear attention in transformers (Qwen3-Next, Kimi Linear), which no config names.
CHUNK_OF_LINEAR_LAYERS = 64


def windows_of(model: PreTrainedModel) -> list[int]:
    """These lengths of the stack that reads a prompt, in tokens, longest first.

    Those that no text can exceed are left out.
    """
    stack = "encoder" if model.config.is_encoder_decoder else "decoder"
    return _windows(model, _config_of(model.config, "encoder"), stack)


def decoder_windows_of(model: PreTrainedModel) -> list[int]:
    """These lengths of an encoder-decoder's decoder, which reads the response; [] of other models.

    Only a config for each stack (T5Gemma) tells them apart from those of the encoder.
    """
    config = _config_of(model.config, "decoder")
    if not model.config.is_encoder_decoder or config is model.config:
        return []
    return _windows(model, config, "decoder")


def _config_of(config: PretrainedConfig, stack: str) -> PretrainedConfig:
    """The config of a stack of a nested encoder-decoder; of other models, their own."""
    part = getattr(config, stack, None)
    return part if isinstance(part, PretrainedConfig) else config


def _windows(
    model: PreTrainedModel, config: PretrainedConfig, stack: Literal["encoder", "decoder"]
) -> list[int]:
    limit = max_positions(text_config(model), stack)
    found = set(_lengths(config.get_text_config().to_dict()))
    return sorted((n for n in found if n > 0 and (limit is None or n < limit)), reverse=True)


def _lengths(config: dict[str, Any]) -> Iterator[int]:
    for key in KEYS:
        value = config.get(key)
        values = value if isinstance(value, list) else [value]  # LED has one for each layer
        yield from (n for n in values if isinstance(n, int) and not isinstance(n, bool))
    if not set(config.get("layer_types") or ()) <= ATTENTION_LAYERS:
        yield CHUNK_OF_LINEAR_LAYERS
