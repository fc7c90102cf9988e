"""Marks some cases of a test as slow."""

from collections.abc import Callable, Iterable

import pytest


def with_slow(cases: Iterable, is_slow: Callable[..., bool]) -> list:
    """Parameters of a test: the cases of which `is_slow(*case)` is true are marked `slow`.

    Args:
      cases: single values, or tuples of several.
    """
    parameters = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.slow] if is_slow(*values) else []
        parameters.append(pytest.param(*values, marks=marks))
    return parameters
