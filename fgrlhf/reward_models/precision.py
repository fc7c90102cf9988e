"""Networks that judge texts in half precision, with their heads in fp32.

A score in bf16 has three digits: the head of a network in bf16 gives 64 different texts a few dozen
scores. So the trunk, where the time goes, may be in bf16; the head always computes in fp32, from
the trunk's states.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

NetworkT = TypeVar("NetworkT", bound=nn.Module)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def heads_of(network: nn.Module) -> list[nn.Module]:
    """The parts of a network that read its trunk's last states."""
    own: list[nn.Module] | None = getattr(network, "heads", None)
    if own is not None:
        return own
    trunk = getattr(network, "base_model", network)  # of a classifier of transformers
    if trunk is network:
        return []
    parts = [part for part in network.children() if part is not trunk]
    return [part for part in parts if next(part.parameters(), None) is not None]


def with_exact_heads(network: NetworkT) -> NetworkT:
    """The same network, whose heads compute in the precision of their weights, never autocast's."""
    for head in heads_of(network):
        head.forward = partial(_in_own_precision, head, head.forward)
    return network


def _in_own_precision(head: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
    weight = next(head.parameters())

    def cast(value: Any) -> Any:
        is_state = torch.is_tensor(value) and value.is_floating_point()
        return value.to(weight.dtype) if is_state else value

    with torch.autocast(weight.device.type, enabled=False):
        return forward(*map(cast, args), **{name: cast(x) for name, x in kwargs.items()})


def place(network: NetworkT, device: str | torch.device, dtype: str) -> NetworkT:
    """Move a network `with_exact_heads` to a device, all but its heads in this precision.

    Args:
      dtype: "fp32" or "bf16".
    """
    if dtype == "fp32":
        return network.to(device=device, dtype=torch.float32)
    heads = heads_of(network)
    weights = [head.state_dict() for head in heads]  # those before they are rounded
    network.to(device=device, dtype=DTYPES[dtype])
    for head, exact in zip(heads, weights, strict=True):
        head.float().load_state_dict(exact)
    return network
