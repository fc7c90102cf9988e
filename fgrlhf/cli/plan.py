"""`fgrlhf plan [TASK] [PROGRAM:]CONFIG[@NAME] ...`: steps, samples and GPU hours, without training.

Steps and samples come from the configs and, for stages that pass over rows, from their files. Hours
are steps times `seconds.PROGRAM`, a time per step that was measured elsewhere; without one, a stage
has no hours. Dev evaluations and loading are not in them.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.cli.command_line import settings_from
from fgrlhf.cli.new_run import config_class
from fgrlhf.configs.sections import files_of
from fgrlhf.configs.strict import Count, Positive, StrictModel, load_config
from fgrlhf.data.read import read_rows
from fgrlhf.load import task_or_none
from fgrlhf.task import Task

USAGE = """usage: fgrlhf plan [TASK] [PROGRAM:]CONFIG[@NAME] ... [key=value ...]
  PROGRAM: rl (the default), dpo, sft, segment, sequence; NAME: of the row, else logging.run_name"""
PROGRAMS = ("rl", "dpo", "sft", "segment", "sequence")


class PlanSettings(StrictModel):
    """What is known about the machine."""

    seconds: dict[str, Positive] = Field(
        default={}, description="measured seconds of a step, by program: seconds.rl=4.0"
    )
    source: str = Field(
        default="", description="where the seconds were measured, as printed with the hours"
    )
    processes: Count = Field(default=1, description="processes of a stage, one per GPU")


@dataclass(frozen=True)
class PlannedStage:
    """A row of the plan. `steps`, `samples`: None if the rows are not there; `hours`: of GPUs."""

    name: str
    program: str
    steps: int | None
    samples: int | None
    hours: float | None
    note: str = ""


def planned(argument: str, task: Task, settings: PlanSettings) -> PlannedStage:
    """The stage of an argument `[PROGRAM:]CONFIG[@NAME]`.

    Raises:
      UserError: there is no such program, or the config has mistakes.
    """
    program, colon, rest = argument.partition(":")
    if not colon:
        program, rest = "rl", argument
    if program not in PROGRAMS:
        raise UserError(
            f"`{shorten(argument)}`: there is no program `{shorten(program)}`; known:"
            f" {', '.join(PROGRAMS)}"
        )
    path, _, name = rest.partition("@")
    config: Any = load_config(config_class(program, task), path)
    name = name or config.logging.run_name
    steps, samples, note = _steps(program, config, settings.processes)
    seconds = settings.seconds.get(program)
    hours = None
    if steps is not None and seconds is not None:
        hours = steps * seconds * settings.processes / 3600
    return PlannedStage(name, program, steps, samples, hours, note)


def _steps(program: str, config: Any, processes: int) -> tuple[int | None, int | None, str]:
    """Optimiser or rollout steps, responses or rows that they read, and a note."""
    train = config.train
    if program == "rl":
        per_step = train.sampling_batch_size_per_card * config.env.train_num_samples_per_input
        steps = math.ceil(train.total_episodes / (per_step * processes))
        return steps, steps * per_step * processes, ""
    limit = getattr(train, "max_steps", None)
    if limit is not None:
        return limit, limit * train.batch_size, ""
    data = config.data
    rows = 0
    for file in files_of(data.feedback_file if program == "dpo" else data.train_file):
        if not file.startswith("hub:") and not Path(file).exists():
            return None, None, f"needs {file}"
        rows += len(read_rows(file))
    steps = math.ceil(train.epochs * math.ceil(rows / train.batch_size))
    # of DPO and reward models, rows without a judgement are left out
    return steps, math.ceil(train.epochs * rows), "" if program == "sft" else "at most"


def text_of(stages: Sequence[PlannedStage], settings: PlanSettings) -> str:
    """The plan as a table, with the assumption behind the hours."""
    rows = [("stage", "program", "steps", "samples", "GPU hours", "")]
    for stage in stages:
        hours = "not measured" if stage.hours is None else f"{stage.hours:.1f}"
        steps, samples = (
            "?" if one is None else f"{one:,}" for one in (stage.steps, stage.samples)
        )
        rows.append((stage.name, stage.program, steps, samples, hours, stage.note))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place in (0, 1, 5) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    known = [stage.hours for stage in stages if stage.hours is not None]
    if known:
        lines.append(f"sum of the measured: {sum(known):.1f} GPU hours")
        given = ", ".join(f"{name} {value:g} s" for name, value in settings.seconds.items())
        where = f" ({settings.source})" if settings.source else ""
        lines.append(
            f"assumed: a step of {given}{where}; without loading, dev evaluations and what is not"
            " measured"
        )
    else:
        lines.append("give seconds.rl=... and others, measured on your machine, for GPU hours")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: an optional task, configs and key=value settings."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        settings_from(PlanSettings, ["--help"], USAGE)
    words = [word for word in arguments if "=" not in word]
    settings = settings_from(PlanSettings, [word for word in arguments if "=" in word], USAGE)
    name = ""
    if words and not words[0].partition("@")[0].endswith((".yml", ".yaml")):
        name = words.pop(0)
    if not words:
        raise UserError(f"name a config\n{USAGE}")
    task = task_or_none(name)
    print(text_of([planned(word, task, settings) for word in words], settings))
