"""How trials are judged: the files of a run against those of an uninterrupted one."""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.child import Ended, run
from faults.world import Stage

# The commit is excluded too: the code may be edited while the campaign runs.
TIMINGS = re.compile(r"(^|/)(time|seconds|peak_mb|resumed_at|resumed_with|runtime|git_commit)(/|$)")
LOCKS = re.compile(r"lock")  # a lock may stay; it contains a process id
PLACES = {"metrics.jsonl", "run.json", "stages.json", "pipeline.json"}


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    verdict: one of the kind's `good` or `bad` verdicts.
    row: the line of the table that counts it; empty: the kind's name.
    note: an explanation for the reader of a failure.
    counts: further numbers that the table adds up, such as kills.
    """

    verdict: str
    note: str = ""
    row: str = ""
    counts: dict[str, int] = field(default_factory=dict)


# ---- files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileDifference:
    """Names of the files that differ from those of the uninterrupted run."""

    lost: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lost or self.stray or self.other)

    @property
    def verdict(self) -> str:
        """The worst kind of difference."""
        if self.other:
            return "other content"
        return "lost files" if self.lost else "stray files"

    def __str__(self) -> str:
        parts = []
        for kind, files in (("lost", self.lost), ("stray", self.stray), ("other", self.other)):
            if files:
                parts.append(f"{kind}: {', '.join(files[:5])}")
        return "; ".join(parts) or "equal"


def snapshot(folder: Path) -> dict[str, str]:
    """Relative path -> digest of every file below a folder.

    Empty folders count as files whose name ends in `/`.
    """
    taken = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                taken[name + "/"] = ""
        else:
            taken[name] = "" if LOCKS.search(path.name) else digest(path)
    return taken


def digest(path: Path) -> str:
    """Digest of a file; timings in logs are excluded."""
    content = path.read_bytes()
    if path.name in PLACES:
        try:
            text = content.decode("utf-8")
            lines = text.split("\n") if path.suffix == ".jsonl" else [text]
            rows = [_without_timings(json.loads(line)) for line in lines if line.strip()]
            content = json.dumps(rows).encode()
        except ValueError:
            pass  # damaged, so compare its bytes
    return hashlib.sha256(content).hexdigest()


def _without_timings(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_timings(item) for key, item in value.items() if not TIMINGS.search(key)
        }
    if isinstance(value, list):
        return [_without_timings(item) for item in value]
    return value


def compare(expected: dict[str, str], taken: dict[str, str]) -> FileDifference:
    """The files that are lost, stray or different in `taken`."""
    return FileDifference(
        lost=tuple(name for name in expected if name not in taken),
        stray=tuple(name for name in taken if name not in expected),
        other=tuple(name for name in expected if name in taken and taken[name] != expected[name]),
    )


def judged(
    ended: Sequence[Ended],
    expected: dict[str, str],
    folder: Path,
    note: str = "",
    row: str = "",
    counts: Mapping[str, int] | None = None,
) -> Outcome:
    """The outcome of runs of a command, of which the last one must leave these files.

    Args:
      folder: the one with the files.
    """
    outputs = "\n".join(f"exit {end.code}\n{end.output[-3_000:]}" for end in ended)
    verdict = "equal"
    if any(end.has_traceback for end in ended):
        verdict = "traceback"
    elif ended[-1].code != 0:
        verdict = "does not end"
    else:
        difference = compare(expected, snapshot(folder))
        note = f"{note}: {difference}"
        verdict = difference.verdict if difference else "equal"
    return Outcome(verdict, f"{note}\n{outputs}", row, dict(counts or {}))


# ---- uninterrupted runs --------------------------------------------------------------------------


@dataclass(frozen=True)
class WholeRun:
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


def reference_run(stage: Stage, folder: Path) -> WholeRun:
    """Run a stage to its end in an empty folder. Raises `RuntimeError` if it fails."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.monotonic()
    ended = run(stage.command, folder, folder / "log.txt")
    if ended.code != 0:
        raise RuntimeError(
            f"the uninterrupted run of {stage.name} failed ({ended.code}):\n{ended.output}"
        )
    return WholeRun(
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

    def of(self, stage: Stage) -> WholeRun:
        if stage.name not in self.known:
            self.known[stage.name] = reference_run(stage, self.folder / stage.name)
        return self.known[stage.name]
