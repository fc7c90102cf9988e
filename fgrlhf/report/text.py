"""Numbers as text."""


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, which is plus if it rounds to zero.

    The minus sign is as wide as the plus sign.
    """
    return minus(f"{value:+z.{digits}f}")


def decimal(value: float, digits: int) -> str:
    """A number with its digits after the point; what rounds to zero has no sign."""
    return minus(f"{value:z.{digits}f}")


def minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")
