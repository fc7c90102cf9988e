"""`fgrlhf feedback ...`: the programs of the feedback pages under one name."""

import importlib
import sys
from collections.abc import Sequence

from fgrlhf.errors import UserError

PROGRAMS = {
    "items": "samples or feedback rows as items to annotate",
    "pages": "one self-contained page with its items, to send by mail",
    "serve": "a small server for several annotators",
    "export": "feedback rows from the server's database",
    "agreement": "how far annotators agree, with intervals",
}


def usage() -> str:
    lines = [f"  {name:<10} {what}" for name, what in PROGRAMS.items()]
    head = "usage: fgrlhf feedback PROGRAM [key=value ...]"
    return "\n".join([head, "", *lines, "", "`fgrlhf feedback PROGRAM --help` lists the keys."])


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        sys.exit(0 if arguments else 2)
    program, *rest = arguments
    if program not in PROGRAMS:
        raise UserError(f"there is no program `{program}`\n{usage()}")
    importlib.import_module(f"interface_html.{program}").main(rest)
