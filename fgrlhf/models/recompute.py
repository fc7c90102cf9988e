"""Gradient checkpointing: a transformer layer stores only its input for the backward pass.

All other activations are computed again when their gradients are needed: less memory, more time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def recompute_layers(model: nn.Module) -> nn.Module:
    """The same model, whose transformer layers are computed again in a backward pass.

    The option of transformers works in training mode only; this one works in eval mode too.
    """
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.forward = partial(_recomputed, module.forward)
    return model


def _recomputed(forward: Callable, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # the generator's state is restored for the second pass, so dropout drops the same entries
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
