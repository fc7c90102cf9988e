"""Settings and command lines of experiments, which train several runs with several seeds."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, field_validator

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.configs.messages import other_place
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.pipeline.stages import visible_gpus
from fgrlhf.pipeline.submit import SubmitConfig

MOST_JOBS = 100  # of an experiment in the queue of a cluster


class ExperimentSettings(StrictModel):
    """Common settings of comparisons and sweeps."""

    output_dir: FilePath = Field(description="folder of the results")
    seeds: str = Field(default="0,1,2", description="every run is repeated with each seed")
    lanes: int | None = Field(
        default=None, ge=1, le=1024, description="simultaneous runs; null: one per GPU, or one"
    )

    @field_validator("seeds")
    @classmethod
    def _are_seeds(cls, value: str) -> str:
        seed_list(value)
        return value

    @property
    def seed_list(self) -> list[int]:
        return seed_list(self.seeds)

    @property
    def lane_count(self) -> int:
        return self.lanes or max(1, len(visible_gpus()))

    @property
    def folder(self) -> Path:
        return Path(self.output_dir).absolute()


class SubmittedSettings(ExperimentSettings):
    """Settings of experiments whose runs can be jobs of a cluster."""

    submit: SubmitConfig | None = Field(
        default=None, description="runs as jobs of a cluster; null: on this machine"
    )

    @property
    def lane_count(self) -> int:
        if self.submit is not None and self.lanes is None:
            return MOST_JOBS
        return super().lane_count


def seed_list(text: str) -> list[int]:
    """The seeds of `0,1,2`.

    Raises:
      ValueError: a word is not a seed, or a seed occurs twice.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,10}", word) and int(word) < 2**32 for word in words):
        raise ValueError(
            f"{shorten(text)} is not a list of whole numbers from 0 to 4294967295: write it as"
            " seeds=0,1,2"
        )
    seeds = [int(word) for word in words]
    if len(set(seeds)) < len(seeds):
        raise ValueError(
            f"{shorten(text)} names a seed twice: it would count as two independent runs"
        )
    return seeds


def seeds_text(seeds: Sequence[int]) -> str:
    """`1 seed`, `3 seeds`."""
    return counted(len(seeds), "seed")


@dataclass(frozen=True)
class Arguments:
    """A command line `[TASK] CONFIG ... [key=value ...]`."""

    task: str  # "": none
    configs: list[str]
    settings: list[str]  # of the program: `seeds=0,1`, `submit.cluster=slurm`
    overrides: list[str]  # of the configs: `train.lr=1e-5`


def split_arguments(argv: Sequence[str], usage: str) -> Arguments:
    """Parse a command line.

    Raises:
      UserError: the config is missing, with the usage; or two overrides are of one key.
    """
    words = [argument for argument in argv if _is_word(argument)]
    pairs = [argument for argument in argv if not _is_word(argument)]
    task = ""
    if words and not _is_config(words[0]):
        task = words.pop(0)
    if not words:
        raise UserError(f"name a config\n{usage}")
    settings = []
    overrides = []
    for pair in pairs:
        section, dot, _ = pair.partition("=")[0].partition(".")
        # `submit` is the only section of these programs' settings, and no config has one
        if dot and section != "submit":
            overrides.append(pair)
        else:
            settings.append(pair)
    _check_keys_differ(overrides)
    return Arguments(task, words, settings, overrides)


def _is_config(argument: str) -> bool:
    """Whether this is a config, with or without its program, and not a task."""
    path = argument.rpartition(":")[2]
    return ":" in argument or path.endswith((".yml", ".yaml")) or os.path.isfile(path)


def _is_word(argument: str) -> bool:
    """Whether an argument is a task or a config, whose path may contain `=`."""
    return "=" not in argument or os.path.exists(argument.partition(":")[2] or argument)


def _check_keys_differ(overrides: Sequence[str]) -> None:
    first: dict[str, str] = {}
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in first:
            raise UserError(
                f"{shorten(first[key])} and {shorten(override)} set the same key: leave one of them"
                f" out. A sweep takes several values in one list, as {shorten(key)}=A,B"
            )
        first[key] = override


def check_settings(
    model: type[ExperimentSettings], arguments: Arguments, config_class: type[BaseModel]
) -> None:
    """Raise `UserError` if a setting is a key of the configs, given without its section."""
    for setting in arguments.settings:
        key = setting.partition("=")[0]
        if key.partition(".")[0] in model.model_fields:
            continue
        hint = other_place(config_class, key)
        if hint is not None:
            raise UserError(
                f"{shorten(setting)}: `{shorten(key)}` is not a key of this program. Keys of the"
                f" configs need their section, as in train.lr=1e-5: {hint}"
            )
