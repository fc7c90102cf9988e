"""Installs the annotation tools of `make tools-check`.

    FGRLHF_TOOLS=FOLDER python -m scripts.tools [python=python3.12]

Each is pinned and in its own environment in the folder. A tool that does not install leaves
FOLDER/NAME.failed with the reason, and its tests are skipped with it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pydantic import Field

from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import FilePath, StrictModel

REQUIREMENTS = {
    "label_studio": ("label-studio==1.23.2", "label-studio-sdk==2.1.2"),
    # doccano 1.8.4 imports names that later releases of these packages no longer have
    "doccano": ("doccano==1.8.4", "marshmallow<4", "numpy<2", "setuptools<81"),
    # the client of argilla 2.8.0 imports requests, which it does not list
    "argilla": ("argilla==2.8.0", "requests"),
    "potato": ("potato-annotation==2.12.1",),
}


class Settings(StrictModel):
    folder: FilePath | None = Field(
        default=None, description="of the environments; null: FGRLHF_TOOLS"
    )
    python: str = Field(default="python3.11", description="the interpreter")


def install(name: str, requirements: tuple[str, ...], folder: Path, python: str) -> None:
    """Install a tool, unless the folder has it."""
    home, failed, log = (folder / f"{name}{end}" for end in ("", ".failed", ".log"))
    stamp = home / "installed.txt"
    if stamp.is_file() and stamp.read_text() == " ".join(requirements):
        return
    print(f"tools: installing {' '.join(requirements)} into {home}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    failed.unlink(missing_ok=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    with log.open("w") as output:
        for command in (
            [python, "-m", "venv", str(home)],
            [*pip, "--disable-pip-version-check", *requirements],
        ):
            if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode:
                break
        else:
            stamp.write_text(" ".join(requirements))
            return
    failed.write_text((log.read_text().splitlines() or ["no reason"])[-1])
    print(f"tools: {name} does not install: {failed.read_text()} ({log})", file=sys.stderr)


def run(settings: Settings) -> None:
    folder = Path(settings.folder or os.environ["FGRLHF_TOOLS"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, requirements in REQUIREMENTS.items():
        install(name, requirements, folder, settings.python)


if __name__ == "__main__":
    run_program(run, Settings)
