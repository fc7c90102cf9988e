"""Runs stages in the order of their needs, some beside each other, and reuses those in which
nothing changed.

A stage is a command. Its fingerprint covers the command, the contents of the files it reads
(configs, scripts), the code its modules import from this repository, the packages' versions, and
the fingerprints of the stages it needs. In the outputs folder:

    pipeline.json    fingerprint and state of every stage
    stages.json      {stage: {seconds, peak_mb}} of the complete ones
    logs/<stage>.log what the stage printed

Only one pipeline at a time works in a folder. If it is killed, its stages end with it
(fgrlhf/runs/orphan.py).

A stage that is complete under its present fingerprint, with its outputs in place, is not run again.
One that was cut off is run again on what it left (the stages themselves continue from their
checkpoints). One whose fingerprint has changed loses its outputs first.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from fgrlhf.errors import UserError
from fgrlhf.files import read_json, write_json
from fgrlhf.pipeline.fingerprint import fingerprint
from fgrlhf.runs.orphan import parent_mark
from fgrlhf.runs.stage import hold

LINES_SHOWN = 30  # of a failed stage's log
PULSE = 60.0  # seconds between signs of life where there is no terminal


def stop_with_signals() -> None:
    """A terminal that closes, or `kill`, ends the stages too, as Ctrl-C does; what is ignored
    (nohup) stays so.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


@dataclass(frozen=True)
class Stage:
    """A command, run in the repository's root.

    `needs` are names of stages that come before. `outputs` are paths in the outputs folder that
    only this stage writes. `reads` are glob patterns in the repository, of files whose contents
    decide the result. `modules` are the modules the command runs; what they import is followed.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@dataclass
class _Running:
    stage: Stage
    process: subprocess.Popen
    log: IO[bytes]
    started: float
    seconds_before: float  # of an earlier attempt that was cut off


class Pipeline:
    """Stages, the repository they run in, and the folder they write to.

    `environment` is added to that of this process, `lanes` stages may run at the same time. After
    `run`, `seconds` is what it took and `whole` the seconds and the memory of all stages together,
    None if not all ran in that call.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        root: Path,
        folder: Path,
        environment: Mapping[str, str],
        lanes: int = 2,
        out: IO[str] | None = None,
    ):
        self.stages, self.root, self.folder, self.environment, self.lanes = (
            stages,
            root,
            folder,
            environment,
            lanes,
        )
        self.out = out or sys.stdout
        self.prints = self._fingerprints()
        self._read_state()
        self.ran: set[str] = set()  # in this call
        self.done: set[str] = set()
        self.peak_mb, self.width = 0.0, 0

    def run(self) -> None:
        """Bring every stage up to date.

        Raises:
          UserError: a stage failed; the message holds the end of its log. The stages beside it are
            stopped. Or another pipeline works in the folder.
        """
        with hold(self.folder):
            self._read_state()  # another one may have ended since
            self._run()

    def _run(self) -> None:
        self.begun = self.sampled = self.pulse = time.monotonic()
        waiting, running = list(self.stages), []
        try:
            while waiting or running:
                self._start_ready(waiting, running)
                time.sleep(0.1)
                for one in list(running):
                    self._finish_if_ended(one, running)
                self._watch(running)
        finally:
            self._stop(running)
            self._clear_line()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def _read_state(self) -> None:
        """What earlier runs noted in pipeline.json. Raises `UserError` where that cannot be
        read.
        """
        state = read_json(self._path) if self._path.exists() else {"stages": {}, "whole": None}
        records, whole = (
            (state.get("stages"), state.get("whole")) if isinstance(state, dict) else (None, None)
        )
        whole_is_sound = whole is None or _has(
            whole, {"seconds": int | float, "peak_mb": int | float}
        )
        if (
            not isinstance(records, dict)
            or not all(_has(one, _RECORD) for one in records.values())
            or not whole_is_sound
        ):
            raise UserError(
                f"{self._path} is damaged: delete it. The stages then run again on what they left,"
                " and reuse what is finished"
            )
        self.records: dict[str, dict] = records
        self.whole: dict | None = whole

    # ---- parts of run ----------------------------------------------------------------------------

    def _fingerprints(self) -> dict[str, str]:
        prints: dict[str, str] = {}
        for stage in self.stages:
            unknown = set(stage.needs) - set(prints)
            if unknown:
                raise ValueError(
                    f"stage {stage.name} needs {sorted(unknown)}, which no stage before it provides"
                )
            upstream = [prints[name] for name in stage.needs]
            prints[stage.name] = fingerprint(
                self.root, stage.command, stage.reads, stage.modules, upstream
            )
        return prints

    @property
    def _path(self) -> Path:
        return self.folder / "pipeline.json"

    def _start_ready(self, waiting: list[Stage], running: list[_Running]) -> None:
        for stage in list(waiting):
            if not set(stage.needs) <= self.done:
                continue
            if self._is_current(stage):
                waiting.remove(stage)
                self.done.add(stage.name)
                self._say(f"{stage.name}: nothing changed, reused")
            elif len(running) < self.lanes:
                waiting.remove(stage)
                running.append(self._start(stage))

    def _is_current(self, stage: Stage) -> bool:
        record = self.records.get(stage.name, {})
        in_place = all((self.folder / output).exists() for output in stage.outputs)
        return (
            record.get("complete", False)
            and record["fingerprint"] == self.prints[stage.name]
            and in_place
        )

    def _start(self, stage: Stage) -> _Running:
        record = self.records.get(stage.name)
        continues = (
            record is not None
            and not record["complete"]
            and record["fingerprint"] == self.prints[stage.name]
        )
        if record is not None and not continues:
            for output in stage.outputs:
                _remove(self.folder / output)
        seconds_before = record["seconds"] if continues else 0.0
        self._note(stage, complete=False, seconds=seconds_before, peak_mb=0.0)
        log_path = self._log(stage)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log = open(log_path, "ab" if continues else "wb")
        process = subprocess.Popen(
            stage.command,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self.environment, **parent_mark()},
            start_new_session=True,
        )
        self._say(f"{stage.name}: {'continued' if continues else 'started'}, log in {log_path}")
        return _Running(stage, process, log, time.monotonic(), seconds_before)

    def _finish_if_ended(self, one: _Running, running: list[_Running]) -> None:
        pid, status, usage = os.wait4(one.process.pid, os.WNOHANG)
        if pid == 0:
            return
        running.remove(one)
        one.process.returncode = os.waitstatus_to_exitcode(status)
        one.log.close()
        seconds, peak_mb = (
            self._elapsed(one),
            usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
        )
        failed = one.process.returncode != 0
        if not failed:
            self.ran.add(one.stage.name)
            self.done.add(one.stage.name)
        self._note(one.stage, complete=not failed, seconds=seconds, peak_mb=peak_mb)
        if failed:
            self._say(f"{one.stage.name}: FAILED after {seconds:.0f} s")
            raise UserError(self._what_failed(one))
        self._say(f"{one.stage.name}: done in {seconds:.0f} s, peak memory {peak_mb:.0f} MB")

    def _stop(self, running: Sequence[_Running]) -> None:
        for (
            one
        ) in running:  # all of them before anything else, which may fail: the terminal may be gone
            os.killpg(one.process.pid, signal.SIGTERM)
        for one in running:
            os.wait4(one.process.pid, 0)
            one.process.returncode = -signal.SIGTERM
            one.log.close()
            with suppress(OSError):  # a full disk must not keep the others from being stopped
                self._note(one.stage, complete=False, seconds=self._elapsed(one), peak_mb=0.0)
        for one in running:
            self._say(f"{one.stage.name}: stopped; the next run continues it")

    def _what_failed(self, one: _Running) -> str:
        path = self._log(one.stage)
        tail = (
            path.read_text(encoding="utf-8", errors="replace")
            .replace("\r", "\n")
            .rstrip()
            .splitlines()[-LINES_SHOWN:]
        )
        return (
            f"stage {one.stage.name} failed with exit code {one.process.returncode}. "
            f"The end of its log {path}:\n  "
            + "\n  ".join(tail)
            + "\nMend the cause and run the same command again: finished stages are kept."
        )

    def _elapsed(self, one: _Running) -> float:
        return one.seconds_before + time.monotonic() - one.started

    def _log(self, stage: Stage) -> Path:
        return self.folder / "logs" / f"{stage.name}.log"

    def _note(self, stage: Stage, complete: bool, seconds: float, peak_mb: float) -> None:
        self.records[stage.name] = {
            "fingerprint": self.prints[stage.name],
            "complete": complete,
            "seconds": round(seconds, 1),
            "peak_mb": round(peak_mb, 1),
        }
        finished = [s.name for s in self.stages if self.records.get(s.name, {}).get("complete")]
        in_one_go = set(finished) <= self.ran
        self.whole = (
            {"seconds": round(self.seconds, 1), "peak_mb": round(self.peak_mb, 1)}
            if in_one_go
            else None
        )
        write_json(self._path, {"stages": self.records, "whole": self.whole})
        shown = {
            name: {key: self.records[name][key] for key in ("seconds", "peak_mb")}
            for name in finished
        }
        write_json(
            self.folder / "stages.json", shown | ({"whole": self.whole} if self.whole else {})
        )

    # ---- what the user sees ----------------------------------------------------------------------

    def _say(self, line: str) -> None:
        self._clear_line()
        print(f"[{_clock(self.seconds)}] {line}", file=self.out, flush=True)

    def _watch(self, running: Sequence[_Running]) -> None:
        """Every second measure memory and, on a terminal, redraw one line with the last words of
        what runs.

        Where there is no terminal, a plain line now and then shows that it lives.
        """
        now = time.monotonic()
        if now - self.sampled < 1.0 or not running:
            return
        self.sampled, self.peak_mb = now, max(self.peak_mb, _resident_mb())
        parts = [
            f"{one.stage.name} {_clock(self._elapsed(one))} {_last_line(self._log(one.stage))}"
            for one in running
        ]
        if self.out.isatty():
            columns = shutil.get_terminal_size().columns
            parts = [part[: columns // len(parts) - 8] for part in parts]
            self._clear_line()
            line = f"[{_clock(self.seconds)}] {' | '.join(parts)}"[: columns - 1]
            print(line, end="", file=self.out, flush=True)
            self.width = len(line)
        elif now - self.pulse >= PULSE:
            self.pulse = now
            for part in parts:
                self._say(f"  {part}"[:160])

    def _clear_line(self) -> None:
        if self.width:
            print("\r" + " " * self.width, end="\r", file=self.out, flush=True)
            self.width = 0


_RECORD = {"fingerprint": str, "complete": bool, "seconds": int | float, "peak_mb": int | float}


def _has(value: object, kinds: Mapping) -> bool:
    """Whether `value` is a dict with these keys and kinds of values."""
    return isinstance(value, dict) and all(
        isinstance(value.get(key), kind) for key, kind in kinds.items()
    )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:2d}:{int(seconds) % 60:02d}"


def _last_line(path: Path) -> str:
    """The last thing printed: progress bars redraw their line with carriage returns."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        text = file.read().decode("utf-8", "replace")
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", lines[-1]) if lines else ""


def _resident_mb() -> float:
    """Resident memory of this process and all below it; an upper bound, since shared pages count
    for each.
    """
    total, me = 0, psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
