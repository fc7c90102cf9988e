"""Copies of fp32 weights in half precision for products under autocast, cast once per update.

PyTorch's autocast casts a weight whenever a product reads it: a frozen weight in every call, a
trained one once per context. Here a weight keeps its copy until the weight changes. The copy has
the numbers that autocast would compute, so results are the same; the fp32 weight is what is trained
and saved.

A change is noticed by the weight's version, which in-place operations of PyTorch increase. Code
that changes weights in another way (an optimiser with kernels of its own) must be followed by
`forget_copies`.
"""

import torch
from torch import Tensor, nn

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
        copy = weight.detach().to(dtype)
        setattr(weight, _COPY, (was, copy))
    if torch.is_grad_enabled() and weight.requires_grad:
        return _Cast.apply(weight, copy)
    return copy


def forget_copies(module: nn.Module) -> None:
    """Forget the copies of a module's weights, after an update that PyTorch does not count."""
    for parameter in module.parameters():
        if hasattr(parameter, _COPY):
            delattr(parameter, _COPY)
