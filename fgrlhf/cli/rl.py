"""RL on a task: `fgrlhf rl [TASK] [config.yml] [key=value ...]`.

Trains the policy of the YAML file and saves the one that is best on dev (fgrlhf/train_rl.py).
"""

from collections.abc import Sequence

from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import parse_cli, task_and_rest
from fgrlhf.task_config import rl_config

USAGE = "usage: fgrlhf rl [TASK] [config.yml] [section.key=value ...]"


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: an optional task, an optional YAML file and key=value overrides."""
    task, rest = task_and_rest(argv, USAGE)
    config = parse_cli(rl_config(task), rest, USAGE)
    # only now, since it imports transformers, which takes seconds: mistakes are reported before
    from fgrlhf.train_rl import train

    train(task, config)


if __name__ == "__main__":
    run_main(main)
