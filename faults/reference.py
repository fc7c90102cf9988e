"""Uninterrupted runs, with which every other run of the same command is compared."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from faults.child import run
from faults.compare import snapshot
from faults.world import Stage


@dataclass(frozen=True)
class Reference:
    """The files of a run, its number of changes, its CPU time and seconds, and its folder."""

    files: dict[str, str]
    changes: int
    cpu: float
    seconds: float
    folder: Path

    @property
    def sizes(self) -> list[int]:
        """Sizes of the files it left, in bytes."""
        return [path.stat().st_size for path in self.folder.rglob("*") if path.is_file()]


def reference_run(stage: Stage, folder: Path) -> Reference:
    """Run a stage to its end in an empty folder. Raises `RuntimeError` if it fails."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.monotonic()
    ended = run(stage.command, folder, folder / "log.txt")
    if ended.code != 0:
        raise RuntimeError(
            f"the uninterrupted run of {stage.name} failed ({ended.code}):\n{ended.output}"
        )
    return Reference(
        snapshot(folder / "run"),
        ended.changes,
        ended.cpu,
        time.monotonic() - started,
        folder / "run",
    )


class References:
    """The uninterrupted runs of stages, each run on first access.

    Access them before trials are forked.
    """

    def __init__(self, folder: Path):
        self.folder, self.known = folder, {}

    def of(self, stage: Stage) -> Reference:
        if stage.name not in self.known:
            self.known[stage.name] = reference_run(stage, self.folder / stage.name)
        return self.known[stage.name]
