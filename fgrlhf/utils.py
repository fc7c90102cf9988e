"""Shape checks, masked reductions, whitening and seeds."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from fgrlhf.base.seeds import derive_seed

# Relative: sums of the same fp32 numbers in another order differ by less. A spread below it is
# no spread.
ROUNDING = 1e-6
EPS = 1e-8  # the largest standard deviation that counts as 0
IGNORED = -100  # the label that the losses of transformers ignore

# ---- shapes --------------------------------------------------------------------------------------


def check_shape(name: str, tensor: Tensor, expected: Sequence[int | None]) -> None:
    """Check the shape of an argument; None matches any size.

    Raises:
      ValueError: the shape differs. The message names the argument and both shapes.
    """
    shape = tuple(tensor.shape)
    same_length = len(shape) == len(expected)
    if same_length and all(want is None or want == size for size, want in zip(shape, expected)):
        return
    sizes = ", ".join("any" if want is None else str(want) for want in expected)
    comma = "," if len(expected) == 1 else ""
    raise ValueError(f"{name} has shape {shape}, expected ({sizes}{comma})")


def check_same_shape(**tensors: Tensor) -> None:
    """Check that all arguments have the same shape, so that nothing is broadcast.

    Raises:
      ValueError: their shapes differ. The message names every argument with its shape.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"arguments must have the same shape: {listed}")


# ---- masked reductions ---------------------------------------------------------------------------


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """sum_i m_i x_i over all elements. Elements outside the mask may have any value, even NaN.

    Raises:
      ValueError: x and mask have different shapes (as in all functions of this section).
    """
    check_same_shape(x=x, mask=mask)
    return torch.where(mask.bool(), x, torch.zeros_like(x)).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """sum_i m_i x_i / sum_i m_i; 0 if the mask is empty."""
    return masked_sum(x, mask) / mask.sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Population variance of the elements under the mask: sum_i m_i (x_i - mean)^2 / sum_i m_i."""
    return masked_mean((x - masked_mean(x, mask)) ** 2, mask)


def whiten(x: Tensor, mask: Tensor, shift_mean: bool = True, divide_by: str = "std") -> Tensor:
    """(x - mean) / std under the mask, 0 outside it. With `shift_mean=False`, x / std.

    `divide_by="sqrt_std"` reproduces the published code. It divides by the square root of the
    standard deviation and does not zero the elements outside the mask. With `shift_mean=False` it
    adds the mean to (x - mean) / sqrt(std). Rewards whitened in this way carry the constant
    mean (1 - 1 / sqrt(std)) on every token, which rewards or penalises length (docs/deviations.md,
    D1, D2 and D15).

    A standard deviation of at most `EPS`, or within the rounding error of the largest x, counts as
    0, and x is not divided.

    Args:
      x: values.
      mask: 1 on the elements that count; same shape as x.
      shift_mean: whether the result has mean 0.
      divide_by: "std" or "sqrt_std".
    """
    mean = masked_mean(x, mask)
    std = masked_var(x, mask).sqrt()
    if divide_by == "sqrt_std":
        white = (x - mean) * torch.rsqrt(std + EPS)
        return white if shift_mean else white + mean
    largest = torch.where(mask.bool(), x.abs(), torch.zeros_like(x)).max()
    if shift_mean:
        x = x - mean
    divisor = torch.where(std > max(EPS, ROUNDING * float(largest)), std, torch.ones_like(std))
    return torch.where(mask.bool(), x / divisor, torch.zeros_like(x))


# ---- seeds ---------------------------------------------------------------------------------------


@contextmanager
def seeded(*parts: int | str) -> Iterator[int]:
    """Run a block with the global generators of Python, numpy and torch seeded from `parts`.

    Their previous states are restored afterwards.
    """
    seed = derive_seed(*parts)
    with_gpus = torch.cuda.is_initialized()  # reading their states would initialise them
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.get_rng_state()
    gpu_states = torch.cuda.get_rng_state_all() if with_gpus else []
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield seed
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if with_gpus:
            torch.cuda.set_rng_state_all(gpu_states)
