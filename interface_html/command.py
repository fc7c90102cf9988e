"""The command `fgrlhf feedback`: the programs for collecting feedback."""

import importlib
import sys
from collections.abc import Sequence

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.cli.command_line import settings_from

# name and module -> its function, whose parameter has the settings; what it does
PROGRAMS = {
    "new": ("write_pages", "write the pages of your own kinds of error, and their task"),
    "items": ("write_items", "make items to annotate from samples or from feedback"),
    "select": ("select", "choose the items that should be judged next"),
    "suggest": ("suggest", "add errors that models or judgements suggest to items"),
    "pages": (
        "write_page",
        "write one page with its items in one file, to send to an annotator",
    ),
    "serve": ("serve", "serve the pages to several annotators"),
    "collect": ("collect", "read files that annotators sent back into a server's database"),
    "export": ("export", "write a feedback file from the server's database"),
    "submissions": ("write_submissions", "write all submissions of the database as JSON lines"),
    "merge": ("merge", "merge the feedback of several rounds into one file"),
    "reliability": (
        "write_report",
        "measure how reliable annotators are, for export weights=...",
    ),
    "adjudicate": ("adjudicate", "make items of judgements that disagree, for an adjudicator"),
    "agreement": ("write_report", "report the agreement of annotators, with intervals"),
    "anchoring": ("write_report", "measure how much suggestions influence annotators"),
    "task_pages": ("write_task_pages", "write the task's pages again, after a change of schema.js"),
}
ARGUMENTS = {  # what a program needs beside the task
    "new": "kinds=A,B [severities=minor,major] ",
    "select": "source=FILE out=FILE n=NUMBER ",
    "suggest": "source=FILE out=FILE ",
    "collect": "files=FILE,FILE ",
    "merge": "files=FILE,FILE out=FILE ",
}


def usage() -> str:
    lines = [f"  {name:<11} {description}" for name, (_, description) in PROGRAMS.items()]
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
    run = getattr(importlib.import_module(f"interface_html.{program}"), PROGRAMS[program][0])
    (settings,) = [kind for name, kind in run.__annotations__.items() if name != "return"]
    head = f"usage: fgrlhf feedback {program} TASK {ARGUMENTS.get(program, '')}[key=value ...]"
    run(settings_from(settings, rest, head))
