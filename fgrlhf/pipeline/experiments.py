"""Training runs over several seeds: their stages, their evaluation and their scores.

Comparisons, sweeps and a task's own experiments are built from these parts.
"""

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, field_validator

from fgrlhf.config import FilePath, StrictModel, load_config
from fgrlhf.config_errors import other_place
from fgrlhf.config_text import parsed_or_text
from fgrlhf.config_yaml import read_yaml
from fgrlhf.data.problems import counted
from fgrlhf.errors import UserError, shorten
from fgrlhf.files import numbered_jsonl
from fgrlhf.metrics.config import MetricConfig, is_higher_better
from fgrlhf.metrics.paired import by_prompt
from fgrlhf.metrics.rows import ROWS, read_rows
from fgrlhf.own_code import own_modules
from fgrlhf.pipeline.stages import Pipeline, Stage, visible_gpus
from fgrlhf.pipeline.submit import SubmitConfig, SubmitLauncher
from fgrlhf.report.records import episodes_per_step
from fgrlhf.runs.stage import model_files
from fgrlhf.task import data_of, load_task, rl_config

# program -> its module; the task is the first argument
PROGRAMS = {
    "rl": "fgrlhf.cli.rl",
    "dpo": "fgrlhf.cli.dpo",
    "sft": "sft.run_sft",
    "generate": "fgrlhf.cli.generate",
    "evaluate": "fgrlhf.cli.evaluate",
}
TRAINING = ("rl", "dpo", "sft")
# program -> module and name of its config class; that of RL depends on the task
CONFIG_CLASSES = {
    "dpo": ("fgrlhf.runs.dpo_config", "DPOConfig"),
    "sft": ("sft.config", "SFTConfig"),
}
# keys that an experiment sets itself for every run -> what to do instead
SET_BY_EXPERIMENT = {
    "train.seed": "every run is trained with each of the seeds in seeds=0,1,2, so give that",
    "logging.save_dir": "every run has its own folder in output_dir=..., so leave it out",
}
MOST_JOBS = 100  # of an experiment in the queue of a cluster


def program(task: str, name: str, *arguments: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The command of a stage program, and the modules whose code affects its result."""
    module = PROGRAMS[name]
    command = (sys.executable, "-m", module, task, *arguments)
    # modules that do not exist are ignored
    return command, (module, task, f"{task}.task", f"tasks.{task}.task")


# ---- settings ------------------------------------------------------------------------------------


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
    """A command line `TASK CONFIG ... [key=value ...]`."""

    task: str
    configs: list[str]
    settings: list[str]  # of the program: `seeds=0,1`, `submit.cluster=slurm`
    overrides: list[str]  # of the configs: `train.lr=1e-5`


def split_arguments(argv: Sequence[str], usage: str) -> Arguments:
    """Parse a command line.

    Raises:
      UserError: the task or config is missing, with the usage; or two overrides are of one key.
    """
    words = [argument for argument in argv if _is_word(argument)]
    pairs = [argument for argument in argv if not _is_word(argument)]
    if len(words) < 2:
        raise UserError(f"name a task and a config\n{usage}")
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
    return Arguments(words[0], words[1:], settings, overrides)


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


# ---- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A training run, repeated for every seed.

    Args:
      name: name of its folder, and in tables.
      program: rl, dpo or sft.
      config: its YAML file.
      overrides: `key=value` for the config.
      group: runs of one group have the same config and may differ in their algorithm.
      algorithm: what distinguishes it within its group.
      needs: stages that come before it.
    """

    name: str
    program: str
    config: str
    overrides: tuple[str, ...] = ()
    group: str = ""
    algorithm: str = ""
    needs: tuple[str, ...] = ()

    def folder(self, seed: int) -> str:
        """The run's folder in the experiment's folder; also the name of the stage."""
        return f"{self.name}/seed-{seed}"

    def policy(self, out: Path, seed: int) -> Path:
        """The trained policy: the best on dev."""
        folder = out / self.folder(seed)
        return folder if self.program == "sft" else folder / "best"

    def evaluation(self, seed: int) -> str:
        """The name of its evaluation."""
        return f"{self.name}-seed-{seed}"


def check_overrides(overrides: Iterable[str], more: Mapping[str, str] | None = None) -> None:
    """Raise `UserError` if an override is of a key that the experiment sets itself.

    Args:
      more: further such keys, besides those of `SET_BY_EXPERIMENT`.
    """
    reasons = {**SET_BY_EXPERIMENT, **(more or {})}
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in reasons:
            raise UserError(f"{shorten(override)} cannot be an override: {reasons[key]}")


def parse_config(argument: str) -> tuple[str, str]:
    """(program, path) of `[PROGRAM:]PATH`; the default program is rl.

    Raises:
      UserError: there is no such training program.
    """
    name, colon, path = argument.partition(":")
    if not colon:
        return "rl", argument
    if name not in TRAINING:
        raise UserError(
            f"`{shorten(argument)}`: there is no training program `{shorten(name)}`; known:"
            f" {', '.join(TRAINING)}"
        )
    return name, path


@dataclass(frozen=True)
class EvaluationPlan:
    """The prompts and settings of evaluations.

    Args:
      config: YAML of an RL run, whose lengths, sampling and rewards the evaluation uses.
      data_dir: folder of the prompts; None for a task that generates them.
      num_samples: responses per prompt; several are sampled as in training.
      reward: whether the config's reward models score the responses.
    """

    config: str
    data_dir: str | None
    split: str = "test"
    num_samples: int = 1
    reward: bool = True


@dataclass(frozen=True)
class Experiment:
    """Runs of one task and their evaluations, in one folder.

    Args:
      task: its name.
      out: the output folder.
      environment: environment variables for the stages, in addition to those of this process.
      submit: runs the stages as jobs of a cluster; None: on this machine.
    """

    task: str
    out: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    submit: SubmitConfig | None = None

    def training_stage(self, run: Run, seed: int) -> Stage:
        """A stage that writes <out>/<name>/seed-<seed>."""
        folder = run.folder(seed)
        overrides = self._overrides(run, seed)
        command, modules = program(self.task, run.program, run.config, *overrides)
        return Stage(
            folder,
            command,
            needs=run.needs,
            outputs=(folder,),
            reads=(
                run.config,
                *self.named_files(run.config, run.overrides),
                *data_of(load_task(self.task)),
            ),
            modules=(*modules, *own_modules(read_yaml(run.config))),
            variables=self.variables(run.config),
        )

    def _overrides(self, run: Run, seed: int) -> list[str]:
        return [
            f"logging.save_dir={self.out / run.folder(seed)}",
            f"logging.run_name={run.name}",
            *run.overrides,
            f"train.seed={seed}",
        ]

    def config_of(self, run: Run, seed: int) -> Any:
        """The config of a run, as its training program reads it.

        Raises:
          UserError: lists every mistake in it.
        """
        if run.program == "rl":
            config_class = rl_config(load_task(self.task))
        else:
            module, name = CONFIG_CLASSES[run.program]
            config_class = getattr(import_module(module), name)
        try:
            return load_config(config_class, run.config, self._overrides(run, seed))
        except UserError as error:
            raise UserError(f"the run {run.name} cannot be trained: {error}") from None

    def evaluation_stage(
        self,
        plan: EvaluationPlan,
        name: str,
        policy: str | Path,
        needs: tuple[str, ...] = (),
        folder: str = "",
    ) -> Stage:
        """A stage that writes <out>/<folder>/eval/<name>-<split>."""
        arguments = [
            f"policy={policy}",
            f"config={plan.config}",
            f"output_dir={self.out / folder}",
            f"name={name}",
            f"split={plan.split}",
            f"num_samples={plan.num_samples}",
            f"reward={json.dumps(plan.reward)}",
        ]
        reads = [plan.config, *self.named_files(plan.config)]
        if plan.num_samples > 1:
            arguments.append("do_sample=true")
        if plan.data_dir is None:
            reads += data_of(load_task(self.task))
        else:
            arguments.append(f"data_dir={plan.data_dir}")
            reads += input_files(Path(plan.data_dir) / f"{plan.split}.json")
        if not needs:  # a policy from elsewhere
            reads += input_files(policy)
        command, modules = program(self.task, "evaluate", *arguments)
        output = str(Path(folder) / "eval" / f"{name}-{plan.split}")
        stage = str(Path(folder) / f"evaluate-{name}")
        return Stage(
            stage,
            command,
            needs=needs,
            outputs=(output,),
            reads=tuple(reads),
            modules=(*modules, *own_modules(read_yaml(plan.config))),
            variables=self.variables(plan.config),
        )

    def run(self, stages: Sequence[Stage], lanes: int, reported: Collection[str] = ()) -> None:
        """Bring all stages up to date.

        Lanes on a CPU share its cores, unless OMP_NUM_THREADS is set.

        Args:
          reported: stages that an earlier call brought up to date; see `Pipeline.run`.

        Raises:
          UserError: a stage failed, another pipeline works in the folder, or jobs cannot be
            submitted.
        """
        environment = dict(self.environment)
        launcher = None
        if self.submit is not None:
            launcher = SubmitLauncher(self.submit, self.out)
            environment.setdefault("OMP_NUM_THREADS", str(self.submit.cpus))
        elif "OMP_NUM_THREADS" not in {**os.environ, **environment} and not visible_gpus():
            cores = len(os.sched_getaffinity(0))
            environment["OMP_NUM_THREADS"] = str(max(1, cores // lanes))
        Pipeline(stages, Path.cwd(), self.out, environment, lanes, launcher=launcher).run(reported)

    def config_value(self, config: str, overrides: Iterable[str], key: str) -> Any:
        """The value of a dotted key, as the overrides or else the config's file have it.

        The value of an override is its text. In text of the file, environment variables are
        expanded. None if the key is not set.

        Raises:
          UserError: the config cannot be read.
        """
        for override in reversed(list(overrides)):  # the last override wins
            name, _, text = override.partition("=")
            if name.strip() == key:
                return text
        value: Any = read_yaml(config)
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return self._filled(value) if isinstance(value, str) else value

    def named_files(self, config: str, overrides: Iterable[str] = ()) -> list[str]:
        """The existing files and checkpoints that a config or its overrides name.

        A run depends on their contents.

        Raises:
          UserError: the config cannot be read.
        """
        texts = [*_config_texts(config)]
        for override in overrides:
            texts += _texts(parsed_or_text(override.partition("=")[2]))
        files: set[str] = set()
        for text in texts:
            if text:
                files |= set(input_files(self._filled(text)))
        return sorted(files)

    def variables(self, config: str) -> tuple[str, ...]:
        """`NAME=value` of the environment variables in a config, as its program sees them.

        Raises:
          UserError: the config cannot be read.
        """
        names = set()
        for text in _config_texts(config):
            names |= set(re.findall(r"\$\{(\w+)\}", text))
        values = {**os.environ, **self.environment}
        return tuple(f"{name}={values.get(name, '')}" for name in sorted(names))

    def _filled(self, text: str) -> str:
        return Template(text).safe_substitute({**os.environ, **self.environment})


def input_files(path: str | Path) -> list[str]:
    """The file itself, or the files of a checkpoint's folder; [] for other names."""
    try:
        if Path(path).is_file():
            return [str(Path(path).absolute())]
        return [str(file.absolute()) for file in model_files(Path(path))]
    except (OSError, ValueError):  # not a valid file name
        return []


def _config_texts(config: str) -> Iterable[str]:
    """The texts in a config, without those of its section `logging`."""
    tree = read_yaml(config)
    tree.pop("logging", None)
    return _texts(tree)


def _texts(tree: Any) -> Iterable[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value)


# ---- scores --------------------------------------------------------------------------------------


def evaluation_rows(out: Path, name: str, split: str) -> list[dict]:
    """The rows of an evaluation. Raises `UserError` if the file is missing or damaged."""
    return read_rows(out / "eval" / f"{name}-{split}" / ROWS)


def paired_scores(
    rows: Mapping[str, Sequence[Sequence[Mapping]]], metric: str
) -> dict[str, list[np.ndarray]]:
    """Scores of several policies on the same prompts.

    Args:
      rows: name -> for each seed, its evaluation rows.
      metric: a column of the rows.

    Returns:
      name -> for each seed, the mean over the responses to each prompt. All arrays have the prompts
      for which every evaluation has a value, in the same order.

    Raises:
      UserError: there is no such prompt.
    """
    known = _metrics(rows)
    scores: dict[str, list[dict[str, float]]] = {}
    if metric in known:
        for name, seeds in rows.items():
            scores[name] = [by_prompt(seed_rows, metric) for seed_rows in seeds]
    prompt_sets = [set(values) for seeds in scores.values() for values in seeds]
    shared = set.intersection(*prompt_sets) if prompt_sets else set()
    if not shared:
        raise UserError(
            f"the evaluations have no prompt with `{shorten(metric)}` in common; they have"
            f" {', '.join(known) or 'no metrics'}. Choose another metric=..."
        )
    prompts = sorted(shared)
    arrays: dict[str, list[np.ndarray]] = {}
    for name, seeds in scores.items():
        arrays[name] = [np.array([values[prompt] for prompt in prompts]) for values in seeds]
    return arrays


def _metrics(rows: Mapping[str, Sequence[Sequence[Mapping]]]) -> list[str]:
    """Numeric columns of the evaluations."""
    names: dict[str, None] = {}  # a set that keeps the order
    for seeds in rows.values():
        for row in chain.from_iterable(seeds):
            for name, value in row.items():
                if isinstance(value, int | float) and name not in ("id", "sample"):
                    names[name] = None
    return list(names)


def lower_is_better(metric: str, metrics: Sequence[MetricConfig]) -> bool:
    """Whether lower values of a dev metric are better.

    Nothing is known about a task's own metric, such as `oracle/gold`: higher counts as better.

    Args:
      metrics: the `evaluation_metrics` of the config.
    """
    return is_higher_better(metric, metrics) is False or metric.endswith("loss")


# ---- learning curves -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """An evaluation on dev during training."""

    episodes: float  # responses used for training so far
    seconds: float  # time of rollouts and updates so far
    score: float
    kl: float | None


def read_log(run: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl. Raises `UserError` if it is missing or damaged."""
    path = run / "metrics.jsonl"
    lines = []
    for number, line in numbered_jsonl(path):
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise UserError(
                f"{path}, line {number}: not the metrics of a step. The log is damaged: remove"
                f" {run} and run the same command again, which trains it anew"
            )
        lines.append(line)
    return lines


def learning_curve(lines: Sequence[Mapping], metric: str) -> list[Point]:
    """The dev scores in a run's metrics.jsonl; [] if the run does not count episodes (SFT).

    With `logging.log_interval` above 1, some steps have no line. Each of them is assumed to take as
    long as the last step that has one.
    """
    per_step = episodes_per_step(lines)
    if per_step is None:
        return []
    points = []
    seconds = 0.0
    seconds_of_step = 0.0
    step = 0
    for line in lines:
        seconds += (line["step"] - step) * seconds_of_step
        step = line["step"]
        score = line.get(f"eval/{metric}")
        if score is not None:
            points.append(Point(step * per_step, seconds, score, line.get("eval/kl")))
        times = [value for name, value in line.items() if name.startswith("time/")]
        if times:
            seconds_of_step = sum(times)
    return points
