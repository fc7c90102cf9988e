"""The optimiser of all training loops."""

from typing import Any

import torch
from torch import nn

from fgrlhf.configs.sections import Optimizer


def make_optimizer(
    name: Optimizer,
    model: nn.Module,
    groups: list[dict],
    eps: float = 1e-8,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101).

    The 8-bit state (Dettmers et al. 2022, arXiv 2110.02861) has one scale per block of 256 entries.
    Tensors with fewer than 4,096 entries, and embeddings, whose gradients are the most uneven, keep
    a 32-bit state, as in transformers' Trainer.

    Args:
      model: its embeddings are those that keep a 32-bit state.
      groups: the parameters to train, with the learning rate of each group, and its
        `weight_decay`, which is 0 by default.

    Raises:
      UserError: bitsandbytes is not installed.
    """
    if name == "adamw":
        return torch.optim.AdamW(groups, betas=betas, eps=eps, weight_decay=0.0, fused=True)
    from fgrlhf.models.quantized import bitsandbytes

    library: Any = bitsandbytes("train.optimizer=adamw_8bit")
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    embeddings = {id(module.weight) for module in modules}

    class AdamW8bit(library.optim.AdamW8bit):
        """With bits per parameter; those of `GlobalOptimManager` are shared by all optimisers."""

        def get_config(self, gindex: int, pindex: int, group: dict) -> dict:
            config = super().get_config(gindex, pindex, group)
            config["optim_bits"] = 32 if id(group["params"][pindex]) in embeddings else 8
            return config

    return AdamW8bit(groups, betas=betas, eps=eps, weight_decay=0.0)


# Parts of the names of parameters that do not decay: biases and norms.
_NOT_DECAYED = ("bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")


def decayed(module: nn.Module, weight_decay: float) -> list[dict]:
    """Groups of the trained parameters: those that decay, and biases and norms, which do not.

    These are the groups of transformers' Trainer.
    """
    from transformers.trainer_pt_utils import get_parameter_names

    decays = set(get_parameter_names(module, [nn.LayerNorm], list(_NOT_DECAYED)))
    groups = []
    for is_decayed, decay in ((True, weight_decay), (False, 0.0)):
        parameters = [
            parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and (name in decays) == is_decayed
        ]
        groups.append({"params": parameters, "weight_decay": decay})
    return [group for group in groups if group["params"]]
