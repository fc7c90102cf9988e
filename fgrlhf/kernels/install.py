"""Installs the kernels of this folder in a loaded model, unless `model.kernels` is `off`."""

from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from fgrlhf.kernels.attention import SHARED_PROMPT, use_shared_attention
from fgrlhf.kernels.choice import kernels_off
from fgrlhf.kernels.layers import fast_layers
from fgrlhf.kernels.shared_cache import SHARED_CACHE, use_shared_cache

ModelT = TypeVar("ModelT", bound=nn.Module)


def speed_up(model: ModelT, setting: str = "auto") -> ModelT:
    """The same model with faster layers and, in a Longformer, faster attention.

    Weights, their names and (up to rounding) the results stay the same.

    Args:
      setting: `model.kernels` of the config, needed if `use_kernels` has not been called yet.
    """
    if kernels_off(setting):
        return model
    avoid_cudnn_attention()
    if any("Longformer" in type(module).__name__ for module in model.modules()):
        from fgrlhf.kernels.longformer import use_banded_attention  # with transformers' Longformer

        use_banded_attention(model)
    return fast_layers(model)


def avoid_cudnn_attention() -> None:
    """Let PyTorch's attention choose among its other kernels on a GPU, in the whole process.

    On Hopper and later GPUs it prefers cuDNN, which prepares a plan for every new shape, and that
    takes tens of milliseconds (pytorch/pytorch pull request 155958). In training every batch has
    new shapes, and in sampling every token that is not recorded.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def share_prompts(model: PreTrainedModel, setting: str = "auto") -> None:
    """Let rows of an encoder-decoder's decoder share the encoder states of their prompt.

    See attention.py. With `off` the model is unchanged, and `shares_prompts` is False.

    Args:
      setting: as in `speed_up`.
    """
    if not kernels_off(setting):
        use_shared_attention(model)


def shares_prompts(model: PreTrainedModel) -> bool:
    """Whether the decoder accepts the encoder states of G prompts for G * K rows."""
    return model.config._attn_implementation == SHARED_PROMPT


def share_cache(model: PreTrainedModel, setting: str = "auto") -> None:
    """Let the responses of a decoder-only model share the keys and values of their prompt.

    See shared_cache.py and shared_rows.py. With `off` the model is unchanged, and `shares_cache`
    is False. So is a model with latent attention (DeepSeek, MiniCPM3): its cache holds what keys
    and values are computed from.

    Args:
      setting: as in `speed_up`.
    """
    caches_latents = getattr(model.config, "kv_lora_rank", None) is not None
    if not caches_latents and not kernels_off(setting):
        use_shared_cache(model)


def shares_cache(model: PreTrainedModel) -> bool:
    """Whether the decoder reads a `SharedCache` and the layout of shared rows."""
    return model.config._attn_implementation == SHARED_CACHE
