"""Text and tables as LaTeX, which compiles with pdfLaTeX, XeLaTeX and LuaLaTeX.

Text comes from data, so every character that means something to TeX is written as a command.
pdfLaTeX knows the characters of Latin scripts and some marks only; a document that has others
declares them (`declarations`), and shows them as U+4E2D there. The other two engines show them with
a font that has them.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

COMMANDS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": r"{-}",  # else `--` becomes a dash
    "[": r"{[}",  # at the start of a row, it would be an argument of the `\\` before it
    "*": r"{*}",  # likewise
}
# what LaTeX's own UTF-8 tables have with T1 and textcomp
KNOWN = "".join(map(chr, range(0xA0, 0x180))) + "–—‘’“”…€™"  # noqa: RUF001


def escaped(text: str) -> str:
    r"""The text as LaTeX. White space and invisible characters become a space, or nothing.

    >>> escaped("50% of a_b & {c}")
    '50\\% of a\\_b \\& \\{c\\}'
    """
    visible = []
    for character in " ".join(text.split()):
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn"):
            continue
        visible.append(COMMANDS.get(character, character))
    return "".join(visible)


def breakable(text: str) -> str:
    """As `escaped`, in typewriter; lines may end after a slash, an equals sign, a dot or a _."""
    parts = re.split(r"(?<=[/=._,:-])", text)
    text = r"\allowbreak{}".join(escaped(part) for part in parts)
    return rf"\texttt{{{text}}}"


def declarations(text: str) -> list[str]:
    """Lines of a preamble that let pdfLaTeX read the characters of a text that it does not know."""
    unknown = sorted({character for character in text if ord(character) > 0x7F} - set(KNOWN))
    lines = []
    for character in unknown:
        code = f"{ord(character):04X}"
        lines.append(rf"\DeclareUnicodeCharacter{{{code}}}{{U+{code}}}")
    return [r"\ifPDFTeX", *lines, r"\fi"] if lines else []


def table(caption: str, label: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A floating table by booktabs. The cells are LaTeX, the caption is text.

    Args:
      label: of letters, digits, `-` and `:`.
    """
    columns = "l" * len(head)
    lines = [
        r"\begin{table}[tbp]",
        r"\centering\small",
        rf"\caption{{{escaped(caption)}}}",
        rf"\label{{{label}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        f"{' & '.join(head)} \\\\",
        r"\midrule",
        *(f"{' & '.join(row)} \\\\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def document(parts: Sequence[str]) -> str:
    """A document of its own with these parts, to read the tables or to copy its preamble."""
    body = "\n".join(parts)
    preamble = [
        r"\documentclass{article}",
        r"\usepackage{iftex}",
        r"\ifPDFTeX\usepackage[utf8]{inputenc}\usepackage[T1]{fontenc}\usepackage{textcomp}"
        r"\else\usepackage{fontspec}\fi",
        r"\usepackage{booktabs,graphicx,longtable,array}",
        r"\usepackage[margin=2cm]{geometry}",
        *declarations(body),
        r"\begin{document}",
    ]
    return "\n".join([*preamble, body, r"\end{document}"]) + "\n"
