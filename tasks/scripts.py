"""Bash scripts that the commands of several tasks run, and the pipelines of these scripts."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fgrlhf.base.errors import UserError
from fgrlhf.kernels.choice import processor_name
from fgrlhf.pipeline.experiments import input_files
from fgrlhf.pipeline.stages import Pipeline, Stage

ROOT = Path(__file__).parents[1]
MODEL = "outputs/models/smollm2"


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


def script_stage(
    name: str,
    path: str,
    *arguments: str,
    modules: tuple[str, ...],
    needs: tuple[str, ...] = (),
    outputs: tuple[str, ...],
    reads: tuple[str, ...] = (),
    variables: tuple[str, ...] = (),
    threads: int | None = None,
    processes: int | None = None,
) -> Stage:
    """A stage that runs a bash script. The script is one of the stage's inputs."""
    command = ("bash", path, *arguments)
    return Stage(
        name,
        command,
        needs=needs,
        outputs=outputs,
        reads=("scripts/env.sh", path, *reads),
        modules=modules,
        variables=variables,
        threads=threads,
        processes=processes,
    )


def module_stage(
    name: str,
    module: str,
    *arguments: str,
    imports: tuple[str, ...] = (),
    needs: tuple[str, ...],
    outputs: tuple[str, ...],
    reads: tuple[str, ...] = (),
) -> Stage:
    """A stage that runs a Python module.

    Args:
      imports: modules that it imports by name, as it does a task's.
    """
    return Stage(
        name,
        (sys.executable, "-m", module, *arguments),
        needs=needs,
        outputs=outputs,
        reads=reads,
        modules=(module, *imports),
    )


def pipeline_of(
    stages: Sequence[Stage],
    folder: Path,
    data: Path,
    lanes: int,
    scale: str = "small",
    model: Path | None = None,
) -> Pipeline:
    """A pipeline with the environment variables that the scripts read.

    Args:
      stages: in an order that keeps the lanes busy.
      folder: of the outputs.
      data: folder of the rows.
      lanes: stages at the same time, a thread each.
      scale: whose configs the scripts use.
      model: folder of the pretrained language model, at small scale; an input of every stage.
    """
    environment = {
        "SCALE": scale,
        "OUTPUT_DIR": str(folder),
        "DATA_DIR": str(data),
        "OMP_NUM_THREADS": "1",
    }
    if model is not None:
        environment["FGRLHF_SMALL_MODEL"] = str(model)
        files = input_files(model)
        stages = [replace(stage, reads=(*stage.reads, *files)) for stage in stages]
    return Pipeline(stages, ROOT, folder, environment, lanes)


def print_cost(pipeline: Pipeline) -> None:
    """Print time and memory of the whole pipeline, unless some of its stages were reused."""
    if pipeline.whole:
        print(
            f"the whole pipeline: {pipeline.whole['seconds'] / 60:.1f} minutes, peak memory"
            f" {pipeline.whole['peak_mb']:.0f} MB, on {processor_name()}"
        )
