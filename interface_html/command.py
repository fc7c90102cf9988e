"""The command `fgrlhf feedback`: the programs for collecting feedback."""

import importlib
import sys
from collections.abc import Sequence

from fgrlhf.base.errors import UserError, shorten, suggestion

PROGRAMS = {
    "new": "write the pages of your own kinds of error, and their task",
    "items": "make items to annotate from samples or from feedback",
    "select": "choose the items that should be judged next",
    "suggest": "add errors that models or judgements suggest to items",
    "pages": "write one self-contained page with its items, to send to an annotator",
    "serve": "serve the pages to several annotators",
    "collect": "read files that annotators sent back into a server's database",
    "export": "write a feedback file from the server's database",
    "submissions": "write all submissions of the server's database as JSON lines",
    "merge": "merge the feedback of several rounds into one file",
    "reliability": "measure how reliable each annotator is, for export weights=...",
    "adjudicate": "make items of judgements that disagree, for an adjudicator",
    "agreement": "report the agreement of annotators, with intervals",
    "anchoring": "measure how far suggestions influence annotators",
    "task_pages": "write the pages into the task's folder, after a change of its schema.js",
}


def usage() -> str:
    lines = [f"  {name:<11} {description}" for name, description in PROGRAMS.items()]
    head = "usage: fgrlhf feedback PROGRAM TASK [key=value ...]"
    return "\n".join([head, "", *lines, "", "`fgrlhf feedback PROGRAM --help` lists the keys."])


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        sys.exit(0 if arguments else 2)
    program, *rest = arguments
    if program not in PROGRAMS:
        raise UserError(
            f"`{shorten(program)}` is not a program of fgrlhf feedback;"
            f" {suggestion(program, [*PROGRAMS])}"
        )
    if rest and "=" not in rest[0] and not rest[0].startswith("-"):
        rest[0] = f"task={rest[0]}"
    importlib.import_module(f"interface_html.{program}").main(rest)
