"""How a pipeline starts the commands of its stages: on this machine, or as jobs of a cluster."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fgrlhf.base.processes import parent_mark
from fgrlhf.runs.memory import PeakMemory


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Args:
      exit_code: 0 if it succeeded; -n if signal n ended it.
      peak_mb: largest resident memory of one of its processes, in MB.
    """

    exit_code: int
    peak_mb: float


@dataclass(frozen=True)
class Command:
    """What a launcher starts.

    Args:
      name: of the stage.
      arguments: the program and its arguments.
      folder: the working directory.
      environment: variables in addition to those of the pipeline's process.
      log: the file of its output.
      appends: whether the log is continued, after an interruption.
    """

    name: str
    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    log: Path
    appends: bool


class Job(Protocol):
    """A command that was started."""

    @property
    def reference(self) -> str | None:
        """What a later pipeline finds the job by; None if the job ends with this pipeline."""
        ...

    def ended(self) -> Ended | None:
        """How the command ended; None while it waits or runs. Does not block.

        Raises:
          UserError: the cluster lost the job.
        """
        ...

    def stop(self) -> None:
        """Ask the command to end."""
        ...

    def wait(self) -> None:
        """Block until the command has ended, after `stop`."""
        ...


class Launcher(Protocol):
    """Starts commands."""

    @property
    def shares_gpus(self) -> bool:
        """Whether commands run on this machine, whose GPUs the pipeline divides among lanes."""
        ...

    def start(self, command: Command) -> Job:
        """Start a command.

        Raises:
          UserError: the cluster refused the job.
        """
        ...

    def find(self, name: str, reference: str) -> Job | None:
        """The job of an earlier pipeline that still waits or runs; None if there is none.

        Args:
          name: of the stage, for messages.
          reference: of the job.
        """
        ...


# ---- on this machine -----------------------------------------------------------------------------


class LocalJob:
    """A command on this machine."""

    def __init__(self, process: subprocess.Popen):
        self.process = process
        self.peak = PeakMemory(process.pid)

    @property
    def reference(self) -> None:
        return None

    def ended(self) -> Ended | None:
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if pid == 0:
            self.peak.sample()
            return None
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return Ended(self.process.returncode, self.peak.after(usage))

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)

    def wait(self) -> None:
        os.wait4(self.process.pid, 0)
        self.process.returncode = -signal.SIGTERM


class LocalLauncher:
    """Runs commands on this machine. They end with the pipeline, even if it is killed."""

    shares_gpus = True

    def start(self, command: Command) -> LocalJob:
        return LocalJob(popen(command, parent_mark()))

    def find(self, name: str, reference: str) -> None:
        return None


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold back the signals that end this program until the block has ended.

    Their handlers raise an exception. Raised inside `subprocess.Popen`, it would leave a running
    command that nothing stops.
    """
    if threading.current_thread() is not threading.main_thread():  # no handler runs here
        yield
        return
    caught: list[int] = []
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        if callable(signal.getsignal(number)):
            handlers[number] = signal.signal(number, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in caught:
            signal.raise_signal(number)


def popen(
    command: Command, additional_environment: Mapping[str, str], **options
) -> subprocess.Popen:
    """Start a command in a process group of its own, with its output in its log.

    Args:
      additional_environment: variables besides those of the command.
      options: of `subprocess.Popen`.
    """
    with open(command.log, "ab" if command.appends else "wb") as log:
        return subprocess.Popen(
            command.arguments,
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.environment, **additional_environment},
            start_new_session=True,
            **options,
        )
