"""Holistic RLHF under the paper's name; the same as `fgrlhf rl tasks.qa_feedback`.

    python -m tasks.qa_feedback.training.train_baseline baseline_config.yml [key=value ...]

The YAML decides which rewards there are.
"""

import sys

from fgrlhf.base.program import run_main
from fgrlhf.cli import rl


def main() -> None:
    rl.main(["tasks.qa_feedback", *sys.argv[1:]])


if __name__ == "__main__":
    run_main(main)
