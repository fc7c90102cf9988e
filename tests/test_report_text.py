"""Numbers as text in reports."""

import pytest

from fgrlhf.report.text import decimal, signed


@pytest.mark.parametrize(
    "value, text", [(-0.0004, "0.000"), (-0.0006, "−0.001"), (0.0004, "0.000"), (-12.0, "−12.000")]
)
def test_what_rounds_to_zero_has_no_minus(value, text):
    assert decimal(value, 3) == text


@pytest.mark.parametrize("value, text", [(-0.004, "+0.00"), (-0.006, "−0.01"), (1.5, "+1.50")])
def test_a_sign_is_always_shown(value, text):
    assert signed(value) == text
