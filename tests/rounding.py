"""Equality up to the rounding of float32, on any processor."""

from collections.abc import Sequence

import torch

MULTIPLE = 64  # of float32's epsilon, 1.2e-7: 7.6e-6 of the largest magnitude


def assert_equal_up_to_rounding(
    actual: torch.Tensor | Sequence[torch.Tensor], expected: torch.Tensor | Sequence[torch.Tensor]
):
    """Two results that differ only in the order in which float32 numbers were added.

    Processors add in different orders. A sum of n products of size s has an error of about
    sqrt(n) eps s, however small the sum itself is, so a limit for each element by itself holds on
    some processors only. This limit is relative to the largest magnitude of the whole result:
    |actual - expected| <= 64 eps max|expected|.

    Args:
      actual, expected: tensors of one shape; or sequences of them, such as the gradients of all
        parameters, which have one limit together.

    Raises:
      AssertionError: a difference is larger than the limit.
    """
    if isinstance(expected, torch.Tensor):
        actual, expected = [actual], [expected]
    assert len(actual) == len(expected)
    largest = max(float(tensor.detach().abs().max()) for tensor in expected if tensor.numel())
    limit = MULTIPLE * torch.finfo(torch.float32).eps * largest
    for one, other in zip(actual, expected):
        torch.testing.assert_close(one, other, atol=limit, rtol=0)
