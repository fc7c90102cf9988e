"""`key=value` command lines of the programs, checked like every other config.

A key that holds text takes the text after `=` as it is (`fgrlhf.configs.overrides`).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.cli.key_help import describe
from fgrlhf.configs.strict import StrictModel, config_from, load_config
from fgrlhf.load import load_task
from fgrlhf.task import Task

Model = TypeVar("Model", bound=StrictModel)


def settings_from(
    model: type[Model],
    argv: Sequence[str] | None = None,
    usage: str | None = None,
) -> Model:
    """Build `model` from `key=value` arguments; `--help` lists the keys.

    A dot selects a key of a section: `search.beams=8`, `columns.prompt=input`.

    Args:
      usage: first line of `--help`. None: the module that runs, with its settings.

    Raises:
      UserError: lists every mistake.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if any(argument in ("-h", "--help") for argument in argv):
        print("\n".join([usage or _usage_of_module(), "keys:", *describe(model)]))
        sys.exit(0)
    for argument in argv:
        key, equals, _ = argument.partition("=")
        if not equals or not key.strip():
            raise UserError(f"`{shorten(argument)}` is not a setting: write it as key=value")
    return config_from(model, argv)


def _usage_of_module() -> str:
    """The usage of a program that runs as `python -m MODULE`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None:
        return "usage: [key=value ...]"
    return f"usage: python -m {spec.name.removesuffix('.__main__')} [key=value ...]"


def parse_cli(model: type[Model], argv: Sequence[str] | None = None, usage: str = "") -> Model:
    """The config of a command `python -m module config.yml key=value ...`.

    `--help` prints every key and exits.

    Raises:
      UserError: there is no config file, or the config has mistakes.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    usage = usage or "usage: config.yml [section.key=value ...]"
    if any(argument in ("-h", "--help") for argument in argv):
        print("\n".join([usage, "keys:", *describe(model)]))
        sys.exit(0)
    if not argv or ("=" in argv[0] and not Path(argv[0]).exists()):
        before = f": it comes before `{shorten(argv[0])}`" if argv else ""
        raise UserError(f"the config file is missing{before}\n{usage}\n`--help` lists every key")
    return load_config(model, argv[0], argv[1:])


def task_and_rest(argv: Sequence[str] | None, usage: str) -> "tuple[Task, list[str]]":
    """The task named by the first argument, and the other arguments.

    Without arguments, or if the first is `--help`, print the usage and exit.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        command = usage.removeprefix("usage: ").partition(" TASK")[0]
        print(
            f"{usage}\nTASK is a folder of tasks/, such as numbers."
            f" `{command} TASK --help` lists the keys for a task."
        )
        sys.exit(0 if arguments else 2)
    return load_task(arguments[0]), arguments[1:]
