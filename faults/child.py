"""Runs a program of this repository in a forked child, which may die at a chosen point.

A child starts from a process that has imported everything, so a run saves ten seconds of imports.
The module runs as with `python -m module`, with its own working directory, environment and log.
"""

import contextlib
import gc
import json
import os
import re
import resource
import runpy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CPU_LIMIT = 120  # CPU seconds of a child; far more than any tiny run needs
WALL_LIMIT = 600.0
GOOD_CODES = (0, 1, 2, 130)
DEATHS = (signal.SIGKILL, signal.SIGPROF)  # signals that intentionally kill a child
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATHS_OF = {  # audit event -> the positions of its paths and their dir_fd arguments
    "os.rename": ((0, 2), (1, 3)),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
}


@dataclass(frozen=True)
class Command:
    """The command `python -m module arguments`, with additions to the environment."""

    module: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(["python", "-m", self.module, *self.arguments])

    def with_arguments(self, *more: str) -> "Command":
        return Command(self.module, (*self.arguments, *more), self.environment)


@dataclass(frozen=True)
class CrashPoint:
    """Die at the `at`-th change (from 1) below a folder, or at the first that matches `near`."""

    at: int = 0
    near: str = ""

    def is_near(self, paths: Sequence[str]) -> bool:
        return bool(self.near) and any(re.search(self.near, path) for path in paths)

    def __str__(self) -> str:
        return f"change {self.at}" if self.at else f"the first change of {self.near}"


@dataclass(frozen=True)
class Ended:
    """The end of a child: exit code (a negative one is a signal), output, CPU time and changes."""

    code: int
    output: str
    cpu: float
    changes: int
    first_change: float
    last_change: float
    pid: int

    @property
    def killed(self) -> bool:
        """Whether it was killed intentionally."""
        return -self.code in DEATHS

    @property
    def has_traceback(self) -> bool:
        """Whether a user would have seen a traceback or an exit code that no program here uses."""
        if self.code not in GOOD_CODES and not self.killed:
            return True
        return "Traceback (most recent call last)" in self.output


class Changes:
    """An audit hook that counts changes of files below a folder and can die at one of them."""

    def __init__(self, below: Path, crash: CrashPoint | None):
        self.below, self.crash = str(below), crash
        self.count, self.first, self.last = 0, 0.0, 0.0

    def __call__(self, event: str, arguments: tuple) -> None:
        if event != "open" and event not in PATHS_OF:
            return
        paths = [path for path in changed_paths(event, arguments) if self._is_below(path)]
        if paths:
            self._note(paths)

    def _is_below(self, path: str) -> bool:
        return path == self.below or path.startswith(self.below + os.sep)

    def _note(self, paths: list[str]) -> None:
        self.count += 1
        if self.crash is not None and (self.count == self.crash.at or self.crash.is_near(paths)):
            os.kill(os.getpid(), signal.SIGKILL)
        if not all("lock" in os.path.basename(path) for path in paths):
            self.last = time.monotonic()
            self.first = self.first or self.last


def changed_paths(event: str, arguments: tuple) -> list[str]:
    """The absolute paths that an audit event will change."""
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & WRITING
        return [absolute(path)] if writes and isinstance(path, str | bytes | os.PathLike) else []
    paths = []
    for at, folder_at in PATHS_OF[event]:
        folder = -1 if folder_at is None else arguments[folder_at]
        if isinstance(arguments[at], str | bytes | os.PathLike):
            paths.append(absolute(arguments[at], folder))
    return paths


def absolute(path: Any, folder: int = -1) -> str:
    """A path without `..`, relative to the open folder `folder`; -1 is the working directory."""
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(text):
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    return os.path.abspath(text)


@dataclass
class Running:
    """A started child."""

    pid: int
    log: Path
    started: float

    def kill(self) -> None:
        """Kill -9 the child alone; its own children keep running."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> Ended:
        """Wait until it ends. A hanging child is killed, which counts as an unexpected end."""
        hung = False
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - self.started > WALL_LIMIT and not hung:
                hung = True
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        code = -signal.SIGALRM if hung else os.waitstatus_to_exitcode(status)
        noted = self.log.with_suffix(".changes")
        facts = json.loads(noted.read_text()) if noted.exists() else {}
        return Ended(
            code,
            self.log.read_bytes().decode("utf-8", "replace"),
            usage.ru_utime + usage.ru_stime,
            facts.get("count", 0),
            facts.get("first", 0.0),
            facts.get("last", 0.0),
            self.pid,
        )


def start(
    command: Command,
    folder: Path,
    log: Path,
    below: str = "run",
    crash: CrashPoint | None = None,
    die_after: float | None = None,
    answers: str | None = None,
    file_limit: int | None = None,
    before: Callable[[], None] | None = None,
) -> Running:
    """Start a command in `folder`.

    Args:
      log: file for its output, outside of the compared folder.
      below: the part of `folder` in which changes are counted.
      crash: where to die.
      die_after: CPU seconds after which to die; independent of the load of the machine.
      answers: text on its standard input; None: no input.
      file_limit: maximum size of a file in bytes.
      before: called in the child before the program.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.with_suffix(".changes").unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _redirect(log, answers)
            os.chdir(folder)
            os.environ.update(command.environment)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT + 10))
            if file_limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            changes = Changes(Path(os.path.abspath(below)), crash)
            sys.addaudithook(changes)
            if before is not None:
                before()
            code = _run(command, die_after, file_limit)
            note = {"count": changes.count, "first": changes.first, "last": changes.last}
            if file_limit is None:
                log.with_suffix(".changes").write_text(json.dumps(note))
            os._exit(code)
        finally:
            os._exit(99)
    return Running(pid, log, time.monotonic())


def run(command: Command, folder: Path, log: Path, **options: Any) -> Ended:
    """Start a command and wait for its end."""
    return start(command, folder, log, **options).wait()


def _redirect(log: Path, answers: str | None) -> None:
    """Redirect the standard streams: input from `answers`, both outputs to `log`."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    if answers is None:
        source = os.open(os.devnull, os.O_RDONLY)
    else:
        source, writer = os.pipe()
        os.write(writer, answers.encode())
        os.close(writer)
    os.dup2(source, 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _writer_to(1)
    sys.stderr = _writer_to(2)


def _writer_to(descriptor: int):
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def _run(command: Command, die_after: float | None, file_limit: int | None) -> int:
    """Run a module like `python -m`; returns the exit code."""
    sys.argv = [command.module, *command.arguments]
    sys.orig_argv = ["python", "-m", command.module, *command.arguments]
    # it runs as __main__; an earlier import would be a second copy
    sys.modules.pop(command.module, None)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    if die_after is not None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, max(die_after, 0.001))
    code = _exit_code(lambda: runpy.run_module(command.module, run_name="__main__", alter_sys=True))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return code


def _exit_code(program: Callable[[], Any]) -> int:
    try:
        program()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def warm_up(modules: Sequence[str]) -> None:
    """Import all modules of the children on one thread.

    The garbage collector stays off the shared pages.
    """
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)  # a thread pool would not survive a fork
    logging.disable_progress_bar()
    for module in modules:
        __import__(module)
    gc.collect()
    gc.freeze()
