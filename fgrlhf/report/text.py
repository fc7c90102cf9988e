"""Numbers and tables as text."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


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


def csv_text(rows: Iterable[Sequence[Any]], digits: int | None = None) -> str:
    """Rows as CSV (RFC 4180, with line feeds). A cell of None is empty.

    Text that a spreadsheet would read as a formula begins with an apostrophe.

    Args:
      digits: significant digits of a number; None: all.
    """
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in rows:
        writer.writerow([_cell(value, digits) for value in row])
    return stream.getvalue()


def _cell(value: Any, digits: int | None) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and digits is not None:
        return f"{value:.{digits}g}"
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return str(value)
