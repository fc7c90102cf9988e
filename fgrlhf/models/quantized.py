"""QLoRA (Dettmers et al. 2023, arXiv 2305.14314): frozen layers in 4 bits, under LoRA adapters.

    w ~ c_b Q[i]     Q: the 16 values of NF4, for weights that are normally distributed
                     i: 4 bits per weight;  c_b: the largest |w| of its block of 64 weights
    c_b              stored in 8 bits (double quantisation)

A weight then takes 4.127 bits instead of 32. It is turned back into floats whenever its layer
computes, so computation takes longer. The quantised model, not the original one, is what the
adapters are trained on, the reference of the KL penalty, and what `dequantized` returns for files.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fgrlhf.base.errors import UserError

PACKAGE = "bitsandbytes"
INSTALL = ".venv/bin/pip install -c constraints.txt -e '.[quantize]'"


def bitsandbytes(setting: str) -> Any:
    """The optional package that quantises. Raises `UserError` if it is not installed."""
    try:
        return import_module(PACKAGE)  # a statement would be a type error where it is missing
    except ImportError:
        raise UserError(
            f"{setting} needs the package {PACKAGE}, which is not installed: run"
            f" {INSTALL}, or leave the setting out"
        ) from None


def _library() -> Any:
    return bitsandbytes("lora.quantize")


# Longformer's kernels read these layers' weights without calling the layers, unless they have
# adapters.
READ_DIRECTLY = ("key_global", "value_global")


class QuantizedLinear(nn.Linear):
    """A frozen linear layer y = W x + b. Its weight is stored in NF4, the bias as it was.

    Args:
      layer: the layer that it replaces.
    """

    def __init__(self, layer: nn.Linear):
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        packed, self.quant_state = _library().functional.quantize_4bit(
            layer.weight.detach().contiguous(), quant_type="nf4", compress_statistics=True
        )
        self.weight = nn.Parameter(packed, requires_grad=False)  # uint8, two weights per byte
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return _library().matmul_4bit(x, self.weight, self.quant_state, bias=bias)

    def dequantized(self) -> Tensor:
        """The weight (out, in) with which the layer computes, in floats."""
        return _library().functional.dequantize_4bit(self.weight.detach(), self.quant_state)

    def _apply(self, fn, recurse=True):
        """Move the statistics of the blocks along with the weight."""
        super()._apply(fn, recurse)
        self.quant_state.to(self.weight.device)
        return self


def keeps_floats(model: PreTrainedModel, name: str) -> bool:
    """Whether a layer cannot be stored in 4 bits.

    Either transformers keeps it in fp32, such as T5's `wo`, whose input the model casts to the
    dtype of the weight; or it is one of `READ_DIRECTLY`.
    """
    last = name.rpartition(".")[2]
    return last in READ_DIRECTLY or last in (model._keep_in_fp32_modules or [])


def quantize_layers(model: PreTrainedModel, targets: Iterable[str]) -> None:
    """Replace linear layers by `QuantizedLinear`.

    Args:
      targets: full names of the layers. Those that must keep floats are left alone.

    Raises:
      UserError: bitsandbytes is not installed, or a target is not an `nn.Linear`.
    """
    for name in targets:
        parent_name, _, last = name.rpartition(".")
        if keeps_floats(model, name):
            continue
        layer = model.get_submodule(name)
        if isinstance(layer, Conv1D):
            raise UserError(
                f"lora.quantize cannot store `{name}` of {type(model).__name__} in 4 bits, because"
                " GPT-2 stores the weights of linear layers transposed: leave lora.quantize out, or"
                " use a model with ordinary linear layers"
            )
        assert isinstance(layer, nn.Linear)
        setattr(model.get_submodule(parent_name), last, QuantizedLinear(layer))
