"""Decoding in bf16 on a CPU: linear layers with weights in the order in which oneDNN reads them.

A product of few rows with a weight takes as long as it takes to read the weight. PyTorch multiplies
in bf16 with oneDNN, which copies a weight into an order of its own, in blocks, in every product.
While responses are sampled, weights do not change and are read once per token, so here they are
copied once, before the first token. On an AMD EPYC, products of 32 rows are then 1.3 times as fast,
of 4 rows twice as fast. Sums have the same order, so results are the same bit for bit.

In fp32 the gain is as large, but sums have another order than those of MKL, and for some shapes
than those of oneDNN, so layers in fp32 are left as they are.

Axes as in layers.py: M rows of K numbers are mapped to N numbers each.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fgrlhf.kernels import choice
from fgrlhf.kernels.layers import Linear

LEAST_TOKENS = 8  # with fewer, the copies would cost more time than they save
LEAST_WEIGHTS = 2**16  # numbers in a weight; smaller ones stay in the processor's cache


@contextmanager
def packed_weights(model: nn.Module, max_new_tokens: int) -> Iterator[None]:
    """While this is open, linear layers read packed copies of their weights.

    Weights must not change meanwhile, and there are no gradients. Layers that do not multiply in
    bf16, and those for which packing does not pay, stay as they are.
    """
    layers = []
    if max_new_tokens >= LEAST_TOKENS:
        layers = [module for module in model.modules() if _packs(module)]
    for layer in layers:
        # an attribute of the object is found before the method of its class
        layer.forward = _packed_forward(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _packs(module: nn.Module) -> bool:
    if type(module) is not Linear or "forward" in vars(module):
        return False
    weight_NK = module.weight
    # the parts of a sharded weight have another type
    if type(weight_NK) is not nn.Parameter or weight_NK.device.type != "cpu":
        return False
    if weight_NK.numel() < LEAST_WEIGHTS or _dtype_of_products(weight_NK) != torch.bfloat16:
        return False
    return choice.onednn_available() and choice.has_bf16() and torch.backends.mkldnn.enabled


def _dtype_of_products(weight_NK: Tensor) -> torch.dtype:
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    return weight_NK.dtype


def _packed_forward(layer: Linear) -> Callable[[Tensor], Tensor]:
    """The layer's function, with packed copies of its weight and bias as they are now."""
    half = torch.bfloat16
    bias_N = None if layer.bias is None else layer.bias.detach().to(half)
    weight_NK = layer.weight.detach().to(half).contiguous()
    packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight_NK)

    def forward(x: Tensor) -> Tensor:
        return choice.onednn_linear(x.to(half), packed_weight, bias_N)

    return forward
