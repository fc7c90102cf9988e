"""Markdown tables, and inserting them into a document."""

from collections.abc import Sequence
from pathlib import Path

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; the first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float) -> str:
    """A number with three significant digits and no exponent."""
    if value == 0:
        return "0"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - int(f'{value:e}'.partition('e')[2]))}f}"


def replace_part(path: str | Path, name: str, text: str) -> None:
    """Put `text` between `<!-- name -->` and `<!-- /name -->` of a document."""
    before, opening, rest = Path(path).read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition(f"<!-- /{name} -->")
    if not closing:
        raise UserError(
            f"{path} has no place for `{name}`: add the lines `<!-- {name} -->` and `<!-- /{name}"
            " -->` where it belongs"
        )
    write_text(path, before + opening + text.rstrip() + "\n" + closing + after)
