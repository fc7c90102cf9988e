"""Stages that run the scripts and modules of tasks, and the environment that the scripts read."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from fgrlhf.base.errors import UserError
from fgrlhf.configs.strict import FilePath, StrictModel
from fgrlhf.pipeline.experiments import Experiment, input_files
from fgrlhf.pipeline.stages import Stage

ROOT = Path(__file__).parents[2]
MODEL = "outputs/models/smollm2"
SCRIPT_FILES = (
    "scripts/env.sh",
    "scripts/call.sh",
    "fgrlhf/cli/stage_script.py",
)  # the common part of all scripts


class ScriptSettings(StrictModel):
    """Settings of a study that runs the scripts of tasks."""

    output_dir: FilePath | None = Field(
        default=None, description="folder of the results; null: a folder in outputs"
    )
    lanes: PositiveInt = Field(default=2, description="stages at the same time, a thread each")

    def folder_of(self, default: str) -> Path:
        """The folder of the results, which is `default` in outputs if it is not given."""
        return Path(self.output_dir or ROOT / "outputs" / default).absolute()


class PretrainedSettings(ScriptSettings):
    """Settings of a study that starts from a pretrained language model."""

    model: FilePath | None = Field(
        default=None, description="folder of a causal language model; null: SmolLM2, fetched once"
    )


def run_script(path: str, variables: Mapping[str, str], *arguments: str) -> int:
    """Run a script of the repository and return its exit status. Its output is shown."""
    environment = {**os.environ, "SCALE": "small", **variables}
    return subprocess.run(["bash", path, *arguments], cwd=ROOT, env=environment).returncode


def small_model(folder: str | None) -> Path:
    """The folder of the pretrained language model; without `folder`, SmolLM2, fetched once.

    Raises:
      UserError: there is no such folder, or the model cannot be fetched.
    """
    if folder is None:
        default = ROOT / MODEL
        if run_script("scripts/get_small_model.sh", {"FGRLHF_SMALL_MODEL": str(default)}) != 0:
            raise UserError(
                "the language model could not be fetched; the reason is above. Run the command"
                " again, or give the folder of any causal language model: model=FOLDER"
            )
        return default
    path = Path(folder).absolute()
    if not (path / "config.json").is_file():
        raise UserError(f"{path} is not the folder of a language model: it has no config.json")
    return path


def keys(**values: object) -> tuple[str, ...]:
    """`key=value` arguments of a program."""
    return tuple(f"{key}={value}" for key, value in values.items())


def module_stage(
    name: str, module: str, *arguments: str, imports: tuple[str, ...] = (), **parts: Any
) -> Stage:
    """A stage that runs a Python module.

    Args:
      imports: modules that it imports by name, as it does a task's.
      parts: further fields of `Stage`.
    """
    command = (sys.executable, "-m", module, *arguments)
    return Stage(name, command, modules=(module, *imports), **parts)


@dataclass(frozen=True)
class Scripts:
    """The scripts of a task at a scale, as stages.

    Args:
      task: its folder in tasks/.
      scale: whose configs the scripts use.
    """

    task: str
    scale: str

    @property
    def folder(self) -> str:
        return f"tasks/{self.task}"

    def config(self, name: str) -> str:
        """The path of the config `training/NAME.yml` at this scale."""
        folder, _, file = name.rpartition("/")
        return f"{self.folder}/{folder}/{self.scale}_{file}"

    def stage(
        self,
        name: str,
        script: str,
        *arguments: str,
        config: str | None = None,
        reads: Iterable[str] = (),
        **parts: Any,
    ) -> Stage:
        """A stage that runs a script, which is one of its inputs.

        Args:
          script: its path in the task's folder.
          config: the config that it gives to its program; see `config`.
          parts: further fields of `Stage`.
        """
        path = f"{self.folder}/{script}"
        configs = () if config is None else (self.config(config),)
        reads = (*SCRIPT_FILES, path, *configs, *reads)
        return Stage(name, ("bash", path, *arguments), reads=reads, **parts)

    def report(
        self, *arguments: str, modules: tuple[str, ...], outputs: tuple[str, ...] = (), **parts: Any
    ) -> Stage:
        """The report, after everything that it shows."""
        return self.stage(
            "report",
            "training/report.sh",
            *arguments,
            reads=("fgrlhf/report/report.html.j2", "fgrlhf/report/report.css"),
            outputs=(*outputs, "report.html"),
            modules=("fgrlhf.report.page", *modules),
            **parts,
        )


def experiment_of(
    task: str,
    out: Path,
    *,
    outputs: Path | None = None,
    data: Path | None = None,
    scale: str = "mini",
    model: Path | None = None,
) -> Experiment:
    """An experiment with the environment variables that the scripts read.

    Args:
      task: module of the task.
      out: folder of the results.
      outputs: OUTPUT_DIR of the scripts; None: `out`.
      data: their DATA_DIR; None: `data` in that folder.
      scale: whose configs they use.
      model: folder of the pretrained language model, at small scale.
    """
    outputs = outputs or out
    environment = {
        "SCALE": scale,
        "OUTPUT_DIR": str(outputs),
        "DATA_DIR": str(data or outputs / "data"),
        "OMP_NUM_THREADS": "1",
    }
    if model is not None:
        environment["FGRLHF_SMALL_MODEL"] = str(model)
    return Experiment(task, out, environment, root=ROOT)


def reading(stages: Sequence[Stage], model: Path | None) -> list[Stage]:
    """The stages, with a pretrained language model as an input of each."""
    files = () if model is None else tuple(input_files(model))
    return [replace(stage, reads=(*stage.reads, *files)) for stage in stages]
