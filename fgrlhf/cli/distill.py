"""On-policy distillation: `fgrlhf distill [TASK] [config.yml] teacher=FOLDER [key=value ...]`.

It is `fgrlhf rl` with `algorithm.name=distill`: the policy samples, and follows the teacher's
distribution over the next token (fgrlhf/algorithms/distill.py). `teacher` and `beta` are those of
the section `algorithm`. Without a config file, no reward is computed.
"""

from collections.abc import Sequence

from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import parse_cli, task_and_rest
from fgrlhf.task_config import rl_config

USAGE = "usage: fgrlhf distill [TASK] [config.yml] teacher=FOLDER [section.key=value ...]"
SHORT = ("teacher", "beta")


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: an optional task, an optional YAML file and key=value overrides."""
    task, rest = task_and_rest(argv, USAGE)
    keys = [argument.partition("=")[0] for argument in rest]
    settings = [f"algorithm.{rest[i]}" if key in SHORT else rest[i] for i, key in enumerate(keys)]
    has_file = bool(keys) and keys[0] == rest[0]
    if not has_file and not any(key.partition(".")[0] == "reward" for key in keys):
        settings.append("reward={}")
    config = parse_cli(rl_config(task), [*settings, "algorithm.name=distill"], USAGE)
    # only now, since it imports transformers, which takes seconds: mistakes are reported before
    from fgrlhf.train_rl import train

    train(task, config)


if __name__ == "__main__":
    run_main(main)
