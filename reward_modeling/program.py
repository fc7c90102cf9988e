"""Command line of a training program: an optional task, a config, overrides of its keys.

    python -m reward_modeling.run_fg_rm [TASK] config.yml key=value ...

The task determines what a reward model reads before a response, and may have its own file formats.
Without a task, the model reads the prompt's text, and files have the library's formats.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from transformers.utils import logging as transformers_logging

from fgrlhf.config import parse_cli
from fgrlhf.runs.runlog import say
from fgrlhf.task import Task, load_task
from reward_modeling.training import RMConfig

Config = TypeVar("Config", bound=RMConfig)

NO_TASK = Task(name="none")


def split_task(argv: Sequence[str]) -> tuple[Task, list[str]]:
    """The task named by the first argument, and the other arguments.

    The first argument is a task if the second one is not an override; then that is the config.

    Raises:
      UserError: there is no such task.
    """
    arguments = list(argv)
    if len(arguments) > 1 and not arguments[0].startswith("-") and "=" not in arguments[1]:
        return load_task(arguments[0]), arguments[1:]
    return NO_TASK, arguments


def run_program(
    kind: str,
    config_class: type[Config],
    train: Callable[[Config, Task], Path],
    argv: Sequence[str] | None,
) -> None:
    """Train with the task and the config of a command line. `--help` prints every key and exits."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    task, arguments = split_task(sys.argv[1:] if argv is None else argv)
    usage = f"usage: fgrlhf rm {kind} [TASK] config.yml [section.key=value ...]"
    config = parse_cli(config_class, arguments, usage)
    say(f"the reward model is in {train(config, task)}")
