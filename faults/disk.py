"""Kind `disk`: a full disk, a read-only folder, a file in the folder's place, a too long name.

A stage must end with a message. With enough room, the same command must then leave the files of an
uninterrupted run. The full disk is a tmpfs of some kB on the run's folder, in the mount namespace
of the trial. If mounting is not allowed, the size of files is limited instead (RLIMIT_FSIZE), and
the read-only trials need a user other than root.
"""

import ctypes
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from faults.campaign import Bench, Kind, in_child
from faults.child import Ended, run
from faults.judging import Outcome, judged
from faults.world import Stage

STAGES = ("sft", "fg_rm", "pref_rm", "oracle", "dpo", "generate", "evaluate")
# fractions of the bytes that an uninterrupted run leaves; it needs more while it runs
SHARES = (0.02, 0.3, 0.7, 1.0, 1.7)
CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_REC, MS_PRIVATE = 0x20000, 1, 32, 0x4000, 0x40000
ROOM = "64m"


@dataclass(frozen=True)
class Trouble:
    """What is wrong: a disk with `share` of the needed room, or readonly, file or long name."""

    stage: str
    what: str
    share: float = 0.0


TROUBLES = (
    *(Trouble(stage, "full", share) for share in SHARES for stage in STAGES),
    *(Trouble(stage, what) for what in ("readonly", "file", "long name") for stage in STAGES),
)


# ---- mounting ------------------------------------------------------------------------------------


def _mount(target: Path, flags: int, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mounting on {target}")


def mount_small_disk(target: Path, size: int) -> None:
    """Mount a tmpfs of `size` bytes that only this process and its children see."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(CLONE_NEWNS) != 0
        or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0
    ):
        raise OSError(ctypes.get_errno(), "a mount namespace")
    _mount(target, 0, f"size={size}")


def make_room(target: Path) -> None:
    _mount(target, MS_REMOUNT, f"size={ROOM}")


def make_read_only(target: Path) -> None:
    _mount(target, MS_REMOUNT | MS_RDONLY, f"size={ROOM}")


def why_no_mount(folder: Path) -> str:
    """Why no tmpfs can be mounted here; empty if it can."""
    folder.mkdir(parents=True, exist_ok=True)

    def attempt() -> str:
        try:
            mount_small_disk(folder, 1 << 16)
        except OSError as error:
            return str(error)
        return ""

    return in_child(attempt)


# ---- trials --------------------------------------------------------------------------------------


class Disk(Kind):
    """See the module's docstring."""

    name = "disk"
    good = ("refused, then equal", "room enough", "refused", "skipped")
    bad = ("traceback", "other content", "lost files", "stray files", "not refused", "does not end")
    cases = TROUBLES

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self.no_mount = why_no_mount(bench.folder / "mount")

    def prepare(self, indices) -> None:
        if self.no_mount:
            print(f"  disk: no tmpfs ({self.no_mount}), so file sizes are limited", flush=True)
        for index in indices:
            if self.case(index).what == "full":
                self.bench.references.of(self.bench.world.stage(self.case(index).stage))

    def run(self, index: int, folder: Path) -> Outcome:
        trouble = self.case(index)
        stage = self.bench.world.stage(trouble.stage)
        if trouble.what == "full":
            return self._full(stage, trouble, folder)
        if trouble.what == "readonly":
            return self._read_only(stage, folder)
        return self._no_folder(stage, trouble, folder)

    def _full(self, stage: Stage, trouble: Trouble, folder: Path) -> Outcome:
        disk = folder / "run"
        disk.mkdir()
        limit = None
        sizes = self.bench.references.of(stage).sizes
        if self.no_mount:
            limit = max(int(trouble.share * max(sizes)), 1 << 14)
        else:
            mount_small_disk(disk, max(int(trouble.share * sum(sizes)), 1 << 14))
        first = run(stage.command, folder, folder / "logs/0.txt", file_limit=limit)
        second = run(stage.command, folder, folder / "logs/1.txt", file_limit=limit)
        if not self.no_mount:
            make_room(disk)
        third = run(stage.command, folder, folder / "logs/2.txt")
        codes = f"{first.code}, {second.code}, with room {third.code}"
        note = f"{stage.name}, room for {trouble.share:.0%}: exits {codes}"
        files = self.bench.references.of(stage).files
        outcome = judged([first, second, third], files, disk, note, "full disk")
        if outcome.verdict in self.bad:
            shutil.copytree(disk, folder / "kept", dirs_exist_ok=True)
        elif outcome.verdict == "equal":
            verdict = "room enough" if first.code == 0 else "refused, then equal"
            return replace(outcome, verdict=verdict)
        return outcome

    def _read_only(self, stage: Stage, folder: Path) -> Outcome:
        row = "read-only folder"
        disk = folder / "run"
        disk.mkdir()
        if not self.no_mount:
            mount_small_disk(disk, 1 << 24)
            make_read_only(disk)
        elif os.geteuid() == 0:
            return Outcome("skipped", "root can write anywhere, and mounting is not allowed", row)
        else:
            disk.chmod(0o555)
        ended = run(stage.command, folder, folder / "logs/0.txt")
        if self.no_mount:
            disk.chmod(0o755)
        else:
            make_room(disk)
        return self._refusal(ended, f"{stage.name}, read-only folder", row)

    def _no_folder(self, stage: Stage, trouble: Trouble, folder: Path) -> Outcome:
        if trouble.what == "file":
            (folder / "run").write_text("a file\n")
        else:
            long = "x" * 300
            has_name = stage.name in ("generate", "evaluate")
            key = f"name={long}" if has_name else f"logging.save_dir=run/{long}"
            stage = Stage(stage.name, stage.command.with_arguments(key))
        ended = run(stage.command, folder, folder / "logs/0.txt")
        row = "file for a folder" if trouble.what == "file" else trouble.what
        return self._refusal(ended, f"{stage.name}, {trouble.what}", row)

    def _refusal(self, ended: Ended, note: str, row: str) -> Outcome:
        note = f"{note}: exit {ended.code}\n{ended.output[-3_000:]}"
        if ended.has_traceback:
            return Outcome("traceback", note, row)
        return Outcome("refused" if ended.code == 2 else "not refused", note, row)
