"""Training runs over several seeds: their configs, and the stages that train and evaluate them.

Comparisons, sweeps and a task's own experiments are built from these parts.
"""

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from string import Template
from typing import Any

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.configs.names import current_key, with_current_keys
from fgrlhf.configs.overrides import parsed_or_text
from fgrlhf.configs.strict import StrictModel, load_config
from fgrlhf.configs.user_class import own_modules
from fgrlhf.configs.yaml_files import read_config
from fgrlhf.load import data_of, prompts_file, task_or_none
from fgrlhf.pipeline.stages import Pipeline, Stage, visible_gpus
from fgrlhf.pipeline.submit import SubmitConfig, SubmitLauncher
from fgrlhf.report.text import short_commit
from fgrlhf.runs.runlog import command_line, commit_of_code
from fgrlhf.runs.stage import model_files
from fgrlhf.task import Task
from fgrlhf.task_config import rl_config

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


def program(task: str, name: str, *arguments: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The command of a stage program, and the modules whose code affects its result.

    Args:
      task: "": none.
    """
    module = PROGRAMS[name]
    if not task:
        return (sys.executable, "-m", module, *arguments), (module,)
    command = (sys.executable, "-m", module, task, *arguments)
    # modules that do not exist are ignored
    return command, (module, task, f"{task}.task", f"tasks.{task}.task")


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
      cluster: key of the prompts' rows that names the units of intervals; None: `cluster`.
    """

    config: str
    data_dir: str | None
    split: str = "test"
    num_samples: int = 1
    reward: bool = True
    cluster: str | None = None


@dataclass(frozen=True)
class Experiment:
    """Runs of one task and their evaluations, in one folder.

    Args:
      task: its name; "": none.
      out: the output folder.
      environment: environment variables for the stages, in addition to those of this process.
      submit: runs the stages as jobs of a cluster; None: on this machine.
      root: working directory of the stages, and the repository of their files; None: that of this
        process.
    """

    task: str
    out: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    submit: SubmitConfig | None = None
    root: Path | None = None

    @property
    def origin(self) -> dict[str, str]:
        """What made the results, for their page: the task, the commit and the command."""
        commit = short_commit(commit_of_code())
        origin = {"task": self.task, "commit": commit, "command": command_line()}
        return {key: value for key, value in origin.items() if key != "task" or value}

    @property
    def loaded_task(self) -> Task:
        return task_or_none(self.task)

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
                *data_of(self.loaded_task),
            ),
            modules=(*modules, *own_modules(overridden(run.config, run.overrides))),
            variables=self.variables(run.config),
        )

    def _overrides(self, run: Run, seed: int) -> list[str]:
        return [
            f"logging.save_dir={self.out / run.folder(seed)}",
            f"logging.run_name={run.name}",
            *run.overrides,
            f"train.seed={seed}",
        ]

    def config_class(self, program: str) -> type[StrictModel]:
        """The config of a training program."""
        if program == "rl":
            return rl_config(self.loaded_task)
        module, name = CONFIG_CLASSES[program]
        return getattr(import_module(module), name)

    def config_of(self, run: Run, seed: int) -> Any:
        """The config of a run, as its training program reads it.

        Raises:
          UserError: lists every mistake in it.
        """
        try:
            return load_config(
                self.config_class(run.program), run.config, self._overrides(run, seed)
            )
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
        if plan.cluster is not None:
            arguments.append(f"cluster={plan.cluster}")
        data = prompts_file(plan.data_dir, plan.split)
        if data is None:
            reads += data_of(self.loaded_task)
        else:
            arguments.append(f"data_dir={plan.data_dir}")
            reads += input_files(data)
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
            modules=(*modules, *own_modules(read_config(plan.config))),
            variables=self.variables(plan.config),
        )

    def run(self, stages: Sequence[Stage], lanes: int, reported: Collection[str] = ()) -> Pipeline:
        """Bring all stages up to date, and return the pipeline that did.

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
        root = self.root or Path.cwd()
        pipeline = Pipeline(stages, root, self.out, environment, lanes, launcher=launcher)
        pipeline.run(reported)
        return pipeline

    def announce(self, configs: int, seeds: Sequence[int], lanes: int) -> None:
        """Print what will be trained, and where, since the first stage may take a while to start.

        Args:
          configs: how many are trained, each with all seeds.
          lanes: runs at the same time.
        """
        where = f"on this machine, {lanes} at a time"
        if self.submit is not None:
            where = f"as jobs of submit.cluster={self.submit.cluster}, at most {lanes} at a time"
        print(
            f"training {counted(configs * len(seeds), 'run')}:"
            f" {counted(configs, 'config')} with seeds={','.join(map(str, seeds))}, {where}",
            flush=True,
        )

    def config_value(self, config: str, overrides: Iterable[str], key: str) -> Any:
        """The value of a dotted key, as the overrides or else the config's file have it.

        In text, environment variables are expanded. None if the key is not set.

        Raises:
          UserError: the config cannot be read.
        """
        value: Any = overridden(config, overrides)
        for part in current_key(key).split("."):
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


def overridden(config: str, overrides: Iterable[str]) -> dict[str, Any]:
    """The tree of a config's file with the overrides, before any value is checked.

    The value of an override is its text, or a tree if it is a section or a list. An override below
    a key that is no section is left out; the training program refuses it.

    Raises:
      UserError: the config cannot be read.
    """
    tree = read_config(config)
    for override in overrides:
        name, _, text = override.partition("=")
        parsed = parsed_or_text(text)
        *above, last = current_key(name.strip()).split(".")
        section: Any = tree
        for part in above:
            if isinstance(section, dict):
                if section.get(part) is None:
                    section[part] = {}
                section = section[part]
        if isinstance(section, dict):
            section[last] = parsed if isinstance(parsed, dict | list) else text
    return with_current_keys(tree)


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
    tree = read_config(config)
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
