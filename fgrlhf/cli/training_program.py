"""Command line of SFT and of reward models: an optional task, a config, overrides of its keys.

    python -m sft.run_sft [TASK] [config.yml] key=value ...

The task determines what a reward model reads before a response, and may have file formats and
metrics of its own. Without a task, models read the prompt's text, and files have the library's
formats.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from transformers.utils import logging as transformers_logging

from fgrlhf.cli.command_line import parse_cli, task_and_rest
from fgrlhf.configs.strict import StrictModel
from fgrlhf.runs.runlog import say
from fgrlhf.task import Task

Config = TypeVar("Config", bound=StrictModel)


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
    usage = f"usage: fgrlhf {command} [TASK] [config.yml] [section.key=value ...]"
    task, arguments = task_and_rest(argv, usage)
    config = parse_cli(config_class, arguments, usage)
    say(f"the {result} is in {train(config, task)}")
