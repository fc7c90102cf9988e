"""DPO on a task: `fgrlhf dpo [TASK] [dpo_config.yml] [key=value ...]`.

Reads a file of feedback or comparisons; no reward model is trained or loaded. Ordinary and
fine-grained DPO differ only in their YAML (fgrlhf/train_dpo.py).
"""

from collections.abc import Sequence

from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import parse_cli, task_and_rest
from fgrlhf.runs.dpo_config import DPOConfig

USAGE = "usage: fgrlhf dpo [TASK] [config.yml] [section.key=value ...]"


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: an optional task, an optional YAML file and key=value overrides."""
    task, rest = task_and_rest(argv, USAGE)
    config = parse_cli(DPOConfig, rest, USAGE)
    # only now, since it imports transformers, which takes seconds: mistakes are reported before
    from fgrlhf.train_dpo import train

    train(task, config)


if __name__ == "__main__":
    run_main(main)
