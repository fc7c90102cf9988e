"""Linear layers, dropout and norms that are faster than those of transformers, mostly on a CPU.

*Linear layers.* PyTorch multiplies fp32 matrices with MKL, which uses AVX-512 on Intel's processors
only. On others, oneDNN, which is part of the same PyTorch, is twice as fast
(benchmarks/RESULTS.md). Half of the time of an update goes into such products. `choice.py` measures
which of the two is faster on this machine.

*Packed weights.* A product of few rows with a weight takes as long as it takes to read the weight.
PyTorch multiplies in bf16 with oneDNN, which copies a weight into blocks of its own in every
product. While responses are sampled, weights do not change and are read once per token, so they are
copied once, before the first token. On an AMD EPYC, products of 32 rows are then 1.3 times as fast,
of 4 rows twice as fast; queries, keys and values are one product, gate and up another. Sums have
the same order, so results are the same bit for bit. In fp32 the gain is as large, but sums would
have another order than without packing, so nothing is packed.

*Dropout.* PyTorch draws one random number per entry, which takes a tenth of the time of a T5's
update, and stores a mask in fp32. Here a mask has one byte per entry, and one 64-bit random number
gives four entries. Where dropout follows a relu, not even the mask is stored: an output that is not
0 was neither negative nor dropped.

*Normalisation.* PyTorch differentiates the layer norm of T5 and Llama operation by operation, and
reads and writes whole arrays in each. The formula of the gradient needs half as many. On a GPU,
PyTorch has one kernel for the norm.

Axes here: a linear layer maps M rows of K numbers to N numbers each; D width of a hidden state.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5LayerNorm
from transformers.pytorch_utils import Conv1D

from fgrlhf.kernels import choice
from fgrlhf.kernels.copies import for_product

LEAST_TOKENS = 8  # with fewer, packing would cost more time than it saves
LEAST_WEIGHTS = 2**16  # numbers in a weight; smaller ones stay in the processor's cache
# layers of decoders that read the same states, in this order
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))

# ---- linear layers -------------------------------------------------------------------------------


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """The product x w^T + b for x (..., K), as `torch.nn.functional.linear` up to rounding.

    oneDNN computes it if choice.py selects oneDNN for a product of this size, else PyTorch.
    `torch.backends.mkldnn.set_flags(False)` leaves every product to PyTorch.
    """
    multiplications = x.numel() * len(weight_NK)
    if not _could_go_to_onednn(x, weight_NK) or not choice.takes_onednn(multiplications):
        return nn.functional.linear(x, weight_NK, bias_N)
    needs_gradient = x.requires_grad or weight_NK.requires_grad
    if bias_N is not None:
        needs_gradient = needs_gradient or bias_N.requires_grad
    if torch.is_grad_enabled() and needs_gradient:
        # The function's result must be no view: some networks (LED) change it in place.
        y_MN = _LinearFunction.apply(x.flatten(0, -2), weight_NK, bias_N)
        return y_MN.unflatten(0, x.shape[:-1])
    return _onednn_linear(x, weight_NK, bias_N)


def _could_go_to_onednn(x: Tensor, weight_NK: Tensor) -> bool:
    if x.device.type != "cpu" or x.dim() < 2:
        return False
    if x.dtype != torch.float32 or weight_NK.dtype != torch.float32:
        return False
    # autocast chooses the dtype inside PyTorch's own function
    return torch.backends.mkldnn.enabled and not torch.is_autocast_enabled("cpu")


def _onednn_linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    if not (weight_NK.is_contiguous() or weight_NK.T.is_contiguous()):
        # for other layouts oneDNN falls back to code that is a thousand times slower
        weight_NK = weight_NK.contiguous()
    return choice.onednn_linear(x, weight_NK, bias_N)


class _LinearFunction(torch.autograd.Function):
    """y = x w^T + b with the gradients dx = g w, dw = g^T x, db = sum over the rows of g.

    The gradients are computed by `linear` too, so they can go to oneDNN and can be differentiated
    again.
    """

    @staticmethod
    def forward(ctx, x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_MK, weight_NK)
        return _onednn_linear(x_MK, weight_NK, bias_N)

    @staticmethod
    def backward(ctx, grad_MN: Tensor):
        x_MK, weight_NK = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        dx_MK = linear(grad_MN, weight_NK.T) if needs_x else None
        dweight_NK = linear(grad_MN.T, x_MK.T) if needs_weight else None
        dbias_N = grad_MN.sum(0) if needs_bias else None
        return dx_MK, dweight_NK, dbias_N


class Linear(nn.Linear):
    """PyTorch's linear layer, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        bias_N = None if self.bias is None else for_product(self.bias)
        return linear(x, for_product(self.weight), bias_N)


class TransposedLinear(Conv1D):
    """GPT-2's linear layer, whose weight is (K, N), computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, for_product(self.weight).T, for_product(self.bias))


# ---- packed weights ------------------------------------------------------------------------------


@contextmanager
def packed_weights(model: nn.Module, max_new_tokens: int) -> Iterator[None]:
    """While this is open, linear layers read packed copies of their weights.

    Weights must not change meanwhile, and there are no gradients. Layers that do not multiply in
    bf16, and those for which packing does not pay, stay as they are.
    """
    groups = _packed_groups(model) if max_new_tokens >= LEAST_TOKENS else []
    for group in groups:
        for layer, forward in zip(group, _packed_forwards(group)):
            # an attribute of the object is found before the method of its class
            layer.forward = forward
    try:
        yield
    finally:
        for group in groups:
            for layer in group:
                del layer.forward


def _packed_groups(model: nn.Module) -> list[list[Linear]]:
    """The layers to pack, those together that read the same states.

    In an encoder-decoder, keys and values of cross-attention belong to other states than queries.
    """
    packed = [m for m in model.modules() if type(m) is Linear and _packs(m)]
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return [[layer] for layer in packed]
    groups = []
    alone = dict.fromkeys(packed)
    for module in model.modules():
        for names in SIBLINGS:
            found = [getattr(module, name, None) for name in names]
            group = [layer for layer in found if isinstance(layer, Linear) and layer in alone]
            biased = {layer.bias is not None for layer in group}
            if len(group) == len(names) and len(biased) == 1:
                groups.append(group)
                for layer in group:
                    del alone[layer]
    return groups + [[layer] for layer in alone]


def _packs(layer: Linear) -> bool:
    if "forward" in vars(layer):
        return False
    weight_NK = layer.weight
    # the parts of a sharded weight have another type
    if type(weight_NK) is not nn.Parameter or weight_NK.device.type != "cpu":
        return False
    if weight_NK.numel() < LEAST_WEIGHTS or _dtype_of_products(weight_NK) != torch.bfloat16:
        return False
    return choice.onednn_available() and choice.has_bf16() and bool(torch.backends.mkldnn.enabled)


def _dtype_of_products(weight_NK: Tensor) -> torch.dtype:
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    return weight_NK.dtype


def _packed_forwards(group: Sequence[Linear]) -> list[Any]:
    """The layers' functions, with packed copies of their weights and biases as they are now.

    Layers of a group are called one after the other with the same states: the first call computes
    the product with all their weights.
    """
    half = torch.bfloat16
    biases = [layer.bias.detach().to(half) for layer in group if layer.bias is not None]
    bias_N = torch.cat(biases) if biases else None
    weight_NK = torch.cat([layer.weight.detach().to(half) for layer in group])
    packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight_NK)
    sizes = [layer.out_features for layer in group]
    states: list[Tensor] = []  # of the last product, while layers have to read its parts
    parts: list[Tensor] = []

    def product(x: Tensor) -> Tensor:
        return choice.onednn_linear(x.to(half), packed_weight, bias_N)

    def part(i: int, x: Tensor) -> Tensor:
        if not states or states[0] is not x:
            states[:], parts[:] = [x], product(x).split(sizes, -1)
        mine = parts[i]
        if i + 1 == len(group):
            states.clear()
            parts.clear()
        return mine

    if len(group) == 1:
        return [product]
    return [partial(part, i) for i in range(len(group))]


# ---- dropout -------------------------------------------------------------------------------------


def dropout_mask(shape: tuple[int, ...], p: float, device: torch.device | str = "cpu") -> Tensor:
    """A uint8 mask: 0 with probability p (on a CPU rounded to a multiple of 2**-16), else 1."""
    if torch.device(device).type != "cpu":
        return torch.empty(shape, dtype=torch.uint8, device=device).bernoulli_(1 - p)
    n = prod(shape)
    # these bounds make `random_` draw all 64 bits; they are read as four 16-bit numbers
    draws = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None)
    draws_N = draws.view(torch.int16)[:n]
    # a draw is uniform in [-2**15, 2**15), so it is below the threshold with probability p
    threshold = round(2**16 * p) - 2**15
    mask_N = torch.empty(n, dtype=torch.uint8)
    torch.ge(draws_N, threshold, out=mask_N)
    return mask_N.view(shape)


class _Dropout(torch.autograd.Function):
    """y = x M, where M is 0 for a dropped entry and 1 / (1 - p) for others. The gradient is g M."""

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        ctx.scale = 1 / (1 - p)
        mask = dropout_mask(x.shape, p)
        ctx.save_for_backward(mask)
        return mask.to(x.dtype).mul_(x).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (mask,) = ctx.saved_tensors
        return mask.to(grad.dtype) * ctx.scale * grad, None


class _ReluDropout(torch.autograd.Function):
    """y = max(x, 0) M. The gradient is g / (1 - p) where y > 0, else 0."""

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        ctx.scale = 1 / (1 - p)
        mask = dropout_mask(x.shape, p, x.device)
        y = x.relu().mul_(mask.to(x.dtype)).mul_(ctx.scale)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        (y,) = ctx.saved_tensors
        # y > 0 exactly where x > 0 and the entry was kept, so y serves as the mask
        return torch.ops.aten.threshold_backward(grad * ctx.scale, y, 0), None


class Dropout(nn.Dropout):
    """PyTorch's dropout layer, with `dropout_mask` on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or x.device.type != "cpu":
            return super().forward(x)
        return _Dropout.apply(x, self.p)


class ReluFeedForward(T5DenseActDense):
    """T5's feed-forward layer wo dropout(relu(wi x)), which stores one array of its inner width."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not 0 < self.dropout.p < 1:
            return super().forward(x)
        y = _ReluDropout.apply(self.wi(x), self.dropout.p)
        if not torch.is_autocast_enabled(x.device.type):
            y = y.to(self.wo.weight.dtype)
        return self.wo(y)


# ---- normalisation -------------------------------------------------------------------------------


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """The factor r = 1 / sqrt(mean of x^2 + eps) of every row, (..., 1)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (norm.square() / x.shape[-1] + eps).rsqrt()


class _RMSNorm(torch.autograd.Function):
    """y_d = w_d x_d r with r = 1 / sqrt(mean_d x_d^2 + eps), for rows x of D numbers.

    With the gradient g of y, and since dr / dx_d = -r^3 x_d / D:

        dw_d = sum over the rows of g_d x_d r
        dx_d = r (g_d w_d - x_d r mean_c(g_c w_c x_c r))
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        ctx.eps = eps
        ctx.save_for_backward(x, weight_D)
        return (x * _inverse_rms(x, eps)).mul_(weight_D)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight_D = ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        D = len(weight_D)
        r = _inverse_rms(x, ctx.eps)
        xr = x * r
        # g_d x_d r is in both gradients: summed over rows for the weight, over columns for x
        products = grad * xr
        dweight_D = products.flatten(0, -2).sum(0) if needs_weight else None
        dx = None
        if needs_x:
            mean = (products @ weight_D / D)[..., None]
            dx = (grad * weight_D).addcmul_(xr, -mean) * r
        return dx, dweight_D, None


def _rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    if torch.is_grad_enabled() and (x.requires_grad or weight_D.requires_grad):
        return _RMSNorm.apply(x, weight_D, eps)
    return (x * _inverse_rms(x, eps)).mul_(weight_D)


class _FastNorm(nn.Module):
    """A layer norm of transformers in one operation.

    On a CPU this is `_RMSNorm`, in fp32 only. On a GPU it is PyTorch's norm, which is one kernel;
    transformers launches six, and fourteen for the gradient. In half precision, PyTorch's norm
    rounds once; transformers rounds both before and after the product with the weight.
    """

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.weight.dtype:
            return super().forward(x)
        if x.device.type != "cpu":
            shape = self.weight.shape
            y = nn.functional.rms_norm(x, shape, self.weight, self.variance_epsilon)
            return y.to(x.dtype)  # autocast may have changed it
        if x.dtype == torch.float32:
            y = _rms_norm(x, self.weight, self.variance_epsilon)
            # what follows is products: they would cast it one by one
            is_half = torch.is_autocast_enabled("cpu")
            return y.to(torch.get_autocast_dtype("cpu")) if is_half else y
        return super().forward(x)


class T5Norm(_FastNorm, T5LayerNorm):
    """T5's layer norm."""


class MT5Norm(_FastNorm, MT5LayerNorm):
    """mT5's layer norm."""


class LlamaNorm(_FastNorm, LlamaRMSNorm):
    """Llama's layer norm."""


class MistralNorm(_FastNorm, MistralRMSNorm):
    """Mistral's layer norm."""


class Qwen2Norm(_FastNorm, Qwen2RMSNorm):
    """Qwen2's layer norm."""


class Qwen3Norm(_FastNorm, Qwen3RMSNorm):
    """Qwen3's layer norm, also that of queries and keys."""


# ---- in a model ----------------------------------------------------------------------------------

FAST_CLASS = {
    nn.Linear: Linear,
    Conv1D: TransposedLinear,
    nn.Dropout: Dropout,
    T5DenseActDense: ReluFeedForward,
    T5LayerNorm: T5Norm,
    MT5LayerNorm: MT5Norm,
    LlamaRMSNorm: LlamaNorm,
    MistralRMSNorm: MistralNorm,
    Qwen2RMSNorm: Qwen2Norm,
    Qwen3RMSNorm: Qwen3Norm,
}


ModelT = TypeVar("ModelT", bound=nn.Module)


def fast_layers(model: ModelT) -> ModelT:
    """The same model with the layers of this file. Weights and their names do not change."""
    for module in model.modules():
        fast_class = FAST_CLASS.get(type(module))
        if fast_class is None:
            continue
        if fast_class is ReluFeedForward and not isinstance(module.act, nn.ReLU):
            continue
        module.__class__ = fast_class
    return model
