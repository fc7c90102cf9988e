"""Numbers as text."""


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, which is plus if it rounds to zero.

    The minus sign is as wide as the plus sign.
    """
    return minus(f"{value:+z.{digits}f}")


def decimal(value: float, digits: int) -> str:
    """A number with its digits after the point; what rounds to zero has no sign."""
    return minus(f"{value:z.{digits}f}")


def short_commit(commit: str | None) -> str:
    """A commit's first twelve digits, with the mark of modified code; "" for None."""
    digits, dash, modified = (commit or "").partition("-")
    return digits[:12] + dash + modified


def minus(number: str) -> str:
    return number.replace("-", "\N{MINUS SIGN}")
