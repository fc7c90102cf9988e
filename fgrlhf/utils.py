"""Masks, reductions, whitening and seeds."""

import hashlib
import json
import random
from collections.abc import Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

# ---- shapes --------------------------------------------------------------------------------------


def check_shape(name: str, tensor: Tensor, expected: Sequence[int | None]) -> None:
    """Check the shape of an argument; None stands for any size.

    Raises:
      ValueError: the tensor has another shape. The message names the argument and both shapes.
    """
    shape = tuple(tensor.shape)
    same_length = len(shape) == len(expected)
    if same_length and all(want is None or want == size for size, want in zip(shape, expected)):
        return
    sizes = ", ".join("any" if want is None else str(want) for want in expected)
    comma = "," if len(expected) == 1 else ""
    raise ValueError(f"{name} has shape {shape}, expected ({sizes}{comma})")


def check_same_shape(**tensors: Tensor) -> None:
    """Check that arguments do not broadcast.

    Raises:
      ValueError: their shapes differ. The message names every argument with its shape.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"arguments must have one shape: {listed}")


# ---- masked reductions ---------------------------------------------------------------------------


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """sum_i m_i x_i over all elements. x and mask have one shape; masked-out x may be anything, NaN
    included.
    """
    return torch.where(mask.bool(), x, torch.zeros_like(x)).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """sum_i m_i x_i / sum_i m_i; 0 where the mask is empty."""
    return masked_sum(x, mask) / mask.sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Population variance of the elements under the mask: sum_i m_i (x_i - mean)^2 / sum_i m_i."""
    return masked_mean((x - masked_mean(x, mask)) ** 2, mask)


def whiten(
    x: Tensor, mask: Tensor, shift_mean: bool = True, divide_by: str = "std", eps: float = 1e-8
) -> Tensor:
    """(x - mean) / std under the mask, 0 outside it; with `shift_mean=False` x / std.

    `divide_by="sqrt_std"` divides by the square root of the standard deviation, leaves what that
    formula gives outside the mask, and with `shift_mean=False` adds the mean to (x - mean) / ...,
    as the published code does. Rewards whitened so carry the constant mean (1 - 1/std) on every
    token, which pays for length (docs/deviations.md, D1, D2 and D15).
    """
    mean, std = masked_mean(x, mask), masked_var(x, mask).sqrt()
    if divide_by == "sqrt_std":
        white = (x - mean) * torch.rsqrt(std + eps)
        return white if shift_mean else white + mean
    white = (x - mean if shift_mean else x) / torch.where(
        std > eps, std, torch.ones_like(std)
    )  # no spread: nothing to scale
    return torch.where(mask.bool(), white, torch.zeros_like(x))


# ---- seeds ---------------------------------------------------------------------------------------


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that is a pure function of its parts, e.g. `derive_seed(config.seed, "rollout",
    step)`.
    """
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def seeded(*parts: int | str):
    """Run a block with every global generator (python, numpy, torch) seeded from `parts`, then
    restore their states.
    """
    seed = derive_seed(*parts)
    gpus = torch.cuda.is_initialized()  # reading their state would initialise them
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    before_gpus = torch.cuda.get_rng_state_all() if gpus else []
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        if gpus:
            torch.cuda.set_rng_state_all(before_gpus)
