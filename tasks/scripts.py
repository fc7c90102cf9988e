"""Bash scripts that the commands of several tasks run, before and in their pipelines."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fgrlhf.errors import UserError
from fgrlhf.pipeline.stages import Stage

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
    threads: int | None = None,
) -> Stage:
    """A stage that runs a bash script. The script is one of the stage's inputs."""
    command = ("bash", path, *arguments)
    return Stage(name, command, needs, outputs, ("scripts/env.sh", path, *reads), modules, threads)
