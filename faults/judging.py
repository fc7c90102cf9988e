"""How trials are judged: the files of a run against those of an uninterrupted one, and refusals."""

import hashlib
import json
import re
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.child import Ended, run
from faults.world import Stage
from fgrlhf.base.errors import UserError
from fgrlhf.base.program import why_refused

# The commit is excluded too: the code may be edited while the campaign runs.
TIMINGS = re.compile(r"(^|/)(time|seconds|peak_mb|resumed_at|resumed_with|runtime|git_commit)(/|$)")
LOCKS = re.compile(r"lock")  # a lock may stay; it contains a process id
PLACES = {"metrics.jsonl", "run.json", "stages.json", "pipeline.json"}
MOST_LINES = 25
MOST_CHARACTERS = 4_000
MOST_SECONDS = 1.0  # CPU time

GOOD = ("refused", "accepted")
BAD = ("traceback", "over a second", "long text", "unnamed")


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


# ---- refusals of readers in this process ---------------------------------------------------------


@dataclass(frozen=True)
class Called:
    """The result of a reader: its value, the text of its refusal, or its traceback."""

    verdict: str
    value: Any = None
    text: str = ""

    @property
    def note(self) -> str:
        return self.text[-2_000:] if self.verdict == "traceback" else self.text[:2_000]


def call(reader: Callable[[], Any], names: Sequence[str] = (), folder: str = "") -> Called:
    """Call a reader of a user's file or setting.

    A refusal is a `UserError` of at most a few lines that contains one of `names` (empty:
    anything). The length of the name of `folder` does not count. CPU time is measured, so a busy
    machine makes no difference.
    """
    started = time.process_time()
    called = _outcome(reader)
    seconds = time.process_time() - started
    if called.verdict == "traceback":
        return called
    text = called.text
    if seconds > MOST_SECONDS:
        return Called("over a second", called.value, f"{seconds:.1f} s: {text}")
    if called.verdict == "accepted":
        return called
    length = len(text.replace(folder, "") if folder else text)
    lines = text.count("\n") + 1
    if length >= MOST_CHARACTERS or lines > MOST_LINES:
        return Called("long text", None, f"{length} characters, {lines} lines: {text}")
    if names and not any(_plain(name) in _plain(text) for name in names):
        return Called("unnamed", None, f"none of {list(names)} is in: {text}")
    return called


def _outcome(reader: Callable[[], Any]) -> Called:
    """Accepted, refused or traceback."""
    try:
        return Called("accepted", reader())
    except UserError as error:
        return Called("refused", None, str(error))
    except SystemExit as end:
        return Called("refused", None, f"exit {end.code}")
    except MemoryError:
        return Called("traceback", None, "MemoryError")
    except BaseException as error:  # panics of tokenizers are no `Exception`s
        # the text that `run_main` prints; None: an error of the program
        reason = why_refused(error) if isinstance(error, Exception) else None
        if reason is None:
            return Called("traceback", None, traceback.format_exc(limit=-6))
        return Called("refused", None, reason)


def _plain(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())
