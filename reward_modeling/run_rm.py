"""Train a reward model of either kind: the program of `fgrlhf rm`.

    fgrlhf rm [TASK] config.yml key=value ...

A config with a section `labels` trains a segment classifier (run_fg_rm.py), any other config a
scorer of whole responses from pairs (run_pref_rm.py).
"""

import sys
from collections.abc import Sequence

from fgrlhf.config import read_yaml
from fgrlhf.errors import run_main
from reward_modeling import run_fg_rm, run_pref_rm
from reward_modeling.command_line import split_task

USAGE = """usage: fgrlhf rm [TASK] <config.yml> [section.key=value ...]

A config with `labels` trains a segment classifier, any other config a scorer from pairs.
Their keys: python -m reward_modeling.run_fg_rm --help
            python -m reward_modeling.run_pref_rm --help"""


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: an optional task, a YAML file and key=value overrides."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _, config_and_overrides = split_task(arguments)
    if not config_and_overrides or config_and_overrides[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if config_and_overrides else 2)
    has_labels = "labels" in read_yaml(config_and_overrides[0])
    program = run_fg_rm if has_labels else run_pref_rm
    program.main(arguments)


if __name__ == "__main__":
    run_main(main)
