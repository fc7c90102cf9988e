"""Numbers as text."""


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign; the minus sign is as wide as the plus sign."""
    return minus(f"{value:+.{digits}f}")


def minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")
