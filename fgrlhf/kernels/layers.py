"""Linear layers and dropout that cost less on a CPU, in the place of transformers' own; whole
layers that keep nothing.

*Products.* PyTorch leaves products of fp32 matrices to MKL, which does not use the AVX-512 of
processors that are not Intel's: there oneDNN, which comes with the same PyTorch, is twice as fast
(benchmarks/RESULTS.md). Half of an update is such products. `kernels.py` measures which of the two
this machine needs, and holds the choice.

*Dropout.* PyTorch draws one random number per entry, a tenth of an update of a T5, and keeps what
it multiplies with in fp32. Here a mask has one byte per entry, and one draw gives four of them.
Where dropout follows a relu not even the mask is kept: what is not 0 afterwards was neither
negative nor dropped.

*Recomputation.* `recompute_layers` trades time for memory on any device: a transformer layer keeps
what it read, and all else is computed once more when its gradient is needed.
"""

from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.t5.modeling_t5 import T5DenseActDense
from transformers.pytorch_utils import Conv1D

from fgrlhf.kernels import choice as kernels

# ---- products ------------------------------------------------------------------------------------


def product(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x w^T + b for x (..., K), as `torch.nn.functional.linear`;
    `torch.backends.mkldnn.set_flags(False)` makes it that.
    """
    fit = x.device.type == "cpu" and x.dtype == weight_NK.dtype == torch.float32 and x.dim() > 1
    if not fit or torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled:
        return nn.functional.linear(x, weight_NK, bias_N)
    if not kernels.takes_onednn(x.numel() * len(weight_NK)):
        return nn.functional.linear(x, weight_NK, bias_N)
    if torch.is_grad_enabled() and (x.requires_grad or weight_NK.requires_grad):
        return _Product.apply(x, weight_NK, bias_N)
    return _multiply(x, weight_NK, bias_N)


def _multiply(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    if not (weight_NK.is_contiguous() or weight_NK.T.is_contiguous()):
        weight_NK = (
            weight_NK.contiguous()
        )  # oneDNN has no fast way to read other layouts, and takes a thousand times as long
    return kernels.onednn_product(x, weight_NK, bias_N)


class _Product(torch.autograd.Function):
    """y = x w^T + b, whose gradients are products of the same kind: dx = g w, dw = g^T x, db = sum
    of g's rows.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_NK)
        return _multiply(x, weight_NK, bias_N)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight_NK = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_MN = grad.flatten(0, -2)
        return (
            product(grad, weight_NK.T) if needs_x else None,
            product(grad_MN.T, x.flatten(0, -2).T) if needs_weight else None,
            grad_MN.sum(0) if needs_bias else None,
        )


class Linear(nn.Linear):
    """PyTorch's, with `product`."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


class TransposedLinear(Conv1D):
    """GPT-2's linear layer, whose weight is (K, N), with `product`."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight.T, self.bias)


# ---- dropout -------------------------------------------------------------------------------------


def kept(shape: tuple[int, ...], p: float, device: torch.device | str = "cpu") -> Tensor:
    """uint8: 0 with probability p (on a CPU to a resolution of 2**-16), else 1."""
    if torch.device(device).type != "cpu":
        return torch.empty(shape, dtype=torch.uint8, device=device).bernoulli_(1 - p)
    n = prod(shape)
    draws = (
        torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:n]
    )  # all 64 bits
    return torch.ge(draws, round(2**16 * p) - 2**15, out=torch.empty(n, dtype=torch.uint8)).view(
        shape
    )


class _Dropout(torch.autograd.Function):
    """x M, with M 0 where x is dropped and 1 / (1 - p) elsewhere. The gradient is g M."""

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        ctx.grown, mask = 1 / (1 - p), kept(x.shape, p)
        ctx.save_for_backward(mask)
        return mask.to(x.dtype).mul_(x).mul_(ctx.grown)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (mask,) = ctx.saved_tensors
        return mask.to(grad.dtype) * ctx.grown * grad, None


class _ReluDropout(torch.autograd.Function):
    """y = max(x, 0) M. The gradient is g / (1 - p) where y > 0, else 0."""

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        ctx.grown = 1 / (1 - p)
        y = x.relu().mul_(kept(x.shape, p, x.device).to(x.dtype)).mul_(ctx.grown)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad * ctx.grown, y, 0), None


class Dropout(nn.Dropout):
    """PyTorch's, but on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or x.device.type != "cpu":
            return super().forward(x)
        return _Dropout.apply(x, self.p)


class ReluFeedForward(T5DenseActDense):
    """T5's wo dropout(relu(wi x))."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not 0 < self.dropout.p < 1:
            return super().forward(x)
        y = _ReluDropout.apply(self.wi(x), self.dropout.p)
        return self.wo(
            y if torch.is_autocast_enabled(x.device.type) else y.to(self.wo.weight.dtype)
        )


# ---- in a model ----------------------------------------------------------------------------------

FAST = {
    nn.Linear: Linear,
    Conv1D: TransposedLinear,
    nn.Dropout: Dropout,
    T5DenseActDense: ReluFeedForward,
}


def fast_layers(model: nn.Module) -> nn.Module:
    """The same model with these layers; weights and their names stay as they are."""
    for module in model.modules():
        fast = FAST.get(type(module))
        if fast and (fast is not ReluFeedForward or isinstance(module.act, nn.ReLU)):
            module.__class__ = fast
    return model


def recompute_layers(model: nn.Module) -> nn.Module:
    """The same model, whose transformer layers are computed again in a backward pass (transformers'
    own does so in training mode only).
    """
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.forward = partial(_recomputed, module.forward)
    return model


def _recomputed(forward, *args, **kwargs):
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)  # draws the same dropout again
