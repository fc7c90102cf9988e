"""The optimiser of all training loops, and the moving average of what it trains."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fgrlhf.configs.sections import Optimizer
from fgrlhf.models.sharding import like


class Average:
    """The exponential moving average of parameters, over updates or other times.

        a_0 = p_0        a_t = decay * a_(t-1) + (1 - decay) * p_t

    With parameters that are divided among processes, each averages its part.

    Args:
      parameters: by name; their values now are p_0.
      decay: weight of the earlier average, between 0 and 1.
      follower: a copy of the model, whose parameters of the same names become the average; None:
        the average has tensors of its own.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        decay: float,
        follower: nn.Module | None = None,
    ):
        self.parameters = parameters
        self.decay = decay
        self.tensors: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            if follower is None:
                self.tensors[name] = parameter.detach().clone()
            else:
                self.tensors[name] = follower.get_parameter(name).detach()

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters as they are now."""
        for name, parameter in self.parameters.items():
            self.tensors[name].mul_(self.decay).add_(parameter.detach(), alpha=1 - self.decay)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a stored average of the same parameters, whose tensors are whole."""
        for name, average in self.tensors.items():
            average.copy_(like(average, tensors[name]))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While the block runs, the parameters have the values of the average."""
        own = {name: p.detach().clone() for name, p in self.parameters.items()}
        self._set(self.tensors)
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])


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
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    decayed = [p for name, p in trained.items() if name in decays]
    others = [p for name, p in trained.items() if name not in decays]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
