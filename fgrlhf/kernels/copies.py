"""Copies of fp32 weights in half precision for products under autocast, cast once per update.

PyTorch's autocast casts a weight whenever a product reads it: a frozen weight in every call, a
trained one once per context. Here a weight keeps its copy until the weight changes. The copy has
the numbers that autocast would compute, so results are the same; the fp32 weight is what is trained
and saved.

A change is noticed by the weight's version, which PyTorch's in-place operations increase. PyTorch's
fused optimisers do not, so every step of any optimiser makes it forget the copies of its weights.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from transformers.pytorch_utils import Conv1D

_COPY = "_half_copy"  # attribute of a weight: (what the weight was, its copy)


class _Cast(torch.autograd.Function):
    """The copy of a weight; the gradient goes to the weight, in the weight's precision."""

    @staticmethod
    def forward(ctx, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None


def for_product(weight: Tensor) -> Tensor:
    """What a product reads of a weight: under autocast its copy, otherwise the weight itself."""
    device_type = weight.device.type
    if weight.dtype != torch.float32 or not torch.is_autocast_enabled(device_type):
        return weight
    dtype = torch.get_autocast_dtype(device_type)
    was = (weight._version, weight.data_ptr(), dtype)
    known, copy = getattr(weight, _COPY, (None, None))
    if copy is None or known != was:
        _watch_optimizers()
        copy = weight.detach().to(dtype)
        setattr(weight, _COPY, (was, copy))
    if torch.is_grad_enabled() and weight.requires_grad:
        return _Cast.apply(weight, copy)
    return copy


def keep_copies(frozen: nn.Module, others: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
    """Give the products of a frozen module their copies in place of its weights, to save memory.

    The module then computes under autocast only. Weights that something else reads stay as they
    are: parameters of `others`, and an output layer that is tied to the embeddings.
    """
    read = {id(weight) for weight in others.parameters()}
    products = []
    for module in frozen.modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            products.append(module)
        else:
            read |= {id(weight) for weight in module.parameters(recurse=False)}
    for module in products:
        if id(module.weight) not in read and module.weight.dtype == torch.float32:
            module.weight = nn.Parameter(module.weight.detach().to(dtype), requires_grad=False)


@cache
def _watch_optimizers() -> None:
    """From now on, forget the copies of weights that an optimiser of this process has changed."""
    register_optimizer_step_post_hook(_forget_copies)


def _forget_copies(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if hasattr(weight, _COPY):
                delattr(weight, _COPY)
