"""Studies on the tasks. Each runs stages in a folder, reuses unchanged ones, and prints a table.

    python -m tasks.experiments                      list them
    python -m tasks.experiments NAME [key=value ...]     run one; `--help` lists its keys

Run a study again to continue after an interruption or a changed setting, or to add seeds.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from fgrlhf.base.errors import UserError, suggestion
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.pipeline.stages import stop_with_signals

# name, which is also that of its module -> what it shows
STUDIES = {
    "demo": "the whole pipeline on a world with known truth (`make demo`)",
    "real": "RL on a real pretrained language model (`make real`)",
    "mini": "every task at mini scale, and one table (`make tasks`)",
    "science": "fine-grained against holistic feedback, over seeds (`make science`)",
    "compare": "algorithms on the mini world (tasks/qa_feedback/training/compare.sh)",
    "second_round": "feedback on the answers of a trained policy",
    "active": "uncertainty against random choice of the answers to judge",
    "noisy_annotators": "weighted against plain majorities, with one noisy annotator",
    "hole": "a hole in the feedback, for one reward model and for an ensemble",
    "hacks": "ten rewards that can be exploited, and the guard that should notice",
    "credit": "signals that divide one score over the parts of an answer",
    "real_feedback": "every stage on people's feedback, with a pretrained language model",
}


def usage() -> str:
    lines = [f"  {name:<17} {text}" for name, text in STUDIES.items()]
    return "\n".join(["usage: python -m tasks.experiments NAME [key=value ...]", *lines])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study that the first argument names, with the settings in the others."""
    name, *rest = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in STUDIES:
        raise UserError(f"there is no study `{name}`: {suggestion(name, list(STUDIES))}")
    study = import_module(f"tasks.experiments.{name}").STUDY
    stop_with_signals()
    of_study = f"usage: python -m tasks.experiments {name} [key=value ...]"
    study.run(settings_from(study.settings, rest, of_study))


if __name__ == "__main__":
    run_main(main)
