"""Command line of SFT and of reward models: an optional task, a config, overrides of its keys.

    python -m sft.run_sft [TASK] config.yml key=value ...

The task determines what a reward model reads before a response, and may have file formats and
metrics of its own. Without a task, models read the prompt's text, and files have the library's
formats.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from transformers.utils import logging as transformers_logging

from fgrlhf.cli.command_line import parse_cli
from fgrlhf.configs.strict import StrictModel
from fgrlhf.load import load_task
from fgrlhf.runs.runlog import say
from fgrlhf.task import Task

Config = TypeVar("Config", bound=StrictModel)

NO_TASK = Task(name="none")


def split_task(argv: Sequence[str]) -> tuple[Task, list[str]]:
    """The task named by the first argument, and the other arguments.

    The first argument is a task if the second one is not an override; then that is the config,
    whose path may contain `=`.

    Raises:
      UserError: there is no such task.
    """
    arguments = list(argv)
    has_two = len(arguments) > 1 and not arguments[0].startswith("-")
    if has_two and ("=" not in arguments[1] or os.path.exists(arguments[1])):
        return load_task(arguments[0]), arguments[1:]
    return NO_TASK, arguments


def run_program(
    command: str,
    result: str,
    config_class: type[Config],
    train: Callable[[Config, Task], Path],
    argv: Sequence[str] | None,
) -> None:
    """Train with the task and the config of a command line. `--help` prints every key and exits.

    Args:
      command: what precedes the arguments in the usage, such as "rm segment".
      result: what `train` writes, such as "model".
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    task, arguments = split_task(sys.argv[1:] if argv is None else argv)
    usage = f"usage: fgrlhf {command} [TASK] config.yml [section.key=value ...]"
    config = parse_cli(config_class, arguments, usage)
    say(f"the {result} is in {train(config, task)}")
