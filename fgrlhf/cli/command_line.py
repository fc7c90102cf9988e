"""`key=value` command lines of the programs, checked like every other config.

A key that holds text takes the text after `=` as it is; see `fgrlhf.config_text.value_from_text`.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from fgrlhf.cli.key_help import describe
from fgrlhf.config import StrictModel, load_config, validate
from fgrlhf.config_text import value_from_text
from fgrlhf.errors import UserError, shorten

if TYPE_CHECKING:
    from fgrlhf.task import Task

Model = TypeVar("Model", bound=StrictModel)


def settings_from(
    model: type[Model],
    argv: Sequence[str] | None = None,
    usage: str = "usage: key=value ...",
) -> Model:
    """Build `model` from `key=value` arguments; `--help` lists the keys.

    Raises:
      UserError: lists every mistake.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if any(argument in ("-h", "--help") for argument in argv):
        print("\n".join([usage, "keys:", *describe(model)]))
        sys.exit(0)
    settings = {}
    for argument in argv:
        key, equals, text = argument.partition("=")
        if not equals:
            raise UserError(f"`{shorten(argument)}` is not a setting: write it as key=value")
        settings[key] = value_from_text(model, [key], text)
    return validate(model, settings, source="the command line")


def parse_cli(model: type[Model], argv: Sequence[str] | None = None, usage: str = "") -> Model:
    """The config of a command `python -m module config.yml key=value ...`.

    `--help` prints every key and exits.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(usage or "usage: <config.yml> [section.key=value ...]")
        print("\n".join(["keys:", *describe(model)]))
        sys.exit(0 if argv else 2)
    return load_config(model, argv[0], argv[1:])


def task_and_rest(argv: Sequence[str] | None, usage: str) -> "tuple[Task, list[str]]":
    """The task named by the first argument, and the other arguments.

    Without arguments, or if the first is `--help`, print the usage and exit.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{usage}\n`TASK --help` lists the keys for a task, such as tasks.NAME")
        sys.exit(0 if arguments else 2)
    from fgrlhf.task import load_task  # imports torch, which programs without a model do not need

    return load_task(arguments[0]), arguments[1:]
