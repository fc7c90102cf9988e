"""How a pipeline starts the commands of its stages: on this machine, or as jobs of a cluster."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from fgrlhf.base.processes import parent_mark
from fgrlhf.pipeline import fork_server
from fgrlhf.runs.memory import PeakMemory, maximum_mb


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
      imports_torch: whether its programs import PyTorch.
    """

    name: str
    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    log: Path
    appends: bool
    imports_torch: bool = False


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

    def close(self) -> None:
        """End what was started besides commands."""
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
        return Ended(self.process.returncode, self.peak.after(maximum_mb(usage)))

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)

    def wait(self) -> None:
        os.wait4(self.process.pid, 0)
        self.process.returncode = -signal.SIGTERM


class ForkedJob:
    """A command in a fork of a server. It starts when the server has imported PyTorch.

    Args:
      answers: the socket of the server's answers.
      server: its process id.
    """

    reference = None

    def __init__(self, answers: socket.socket, server: int):
        self.answers = answers
        self.server = server
        self.pid: int | None = None
        self.peak: PeakMemory | None = None
        self.result: Ended | None = None

    def ended(self) -> Ended | None:
        while self.result is None and select.select([self.answers], [], [], 0)[0]:
            self._read()
        if self.result is None and self.peak is not None:
            self.peak.sample()
        return self.result

    def stop(self) -> None:
        if self.pid is None:
            self._read()  # a command that has not started cannot be stopped
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)

    def wait(self) -> None:
        while self.result is None:
            self._read()

    def _read(self) -> None:
        """Wait for an answer: that the command has started, or how it has ended."""
        message = self.answers.recv(fork_server.LARGEST)
        answer = json.loads(message) if message else {}
        if "pid" in answer:
            self.pid = answer["pid"]
            self.peak = PeakMemory(answer["pid"], parent=self.server)
            return
        self.answers.close()
        self.result = Ended(-signal.SIGKILL, 0.0)  # the server was killed
        if self.peak is not None and "exit" in answer:
            self.result = Ended(answer["exit"], self.peak.after(answer["maximum_mb"]))


class LocalLauncher:
    """Runs commands on this machine. They end with the pipeline, even if it is killed.

    Those that import PyTorch are forks of a server (fork_server.py), one for each environment in
    which libraries could be imported differently.
    """

    shares_gpus = True

    def __init__(self):
        self.servers: dict[tuple, tuple[subprocess.Popen, socket.socket]] = {}

    def start(self, command: Command) -> LocalJob | ForkedJob:
        if command.imports_torch and fork_server.available():
            job = self._forked(command)
            if job is not None:
                return job
        return LocalJob(popen(command, parent_mark()))

    def _forked(self, command: Command) -> ForkedJob | None:
        """The command in a fork; None if its server cannot be asked."""
        environment = {**os.environ, **command.environment, **parent_mark()}
        read = fork_server.read_by_imports(environment)
        key = (command.folder, *sorted(read.items()))
        if key not in self.servers:
            self.servers[key] = _started_server(command.folder, environment)
        process, requests = self.servers[key]
        with open(os.devnull, "rb") as nothing, _opened(command) as log:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            folder = str(command.folder)
            try:
                answers = fork_server.request(
                    requests, command.arguments, folder, environment, streams
                )
            except OSError:
                return None
        return ForkedJob(answers, process.pid)

    def find(self, name: str, reference: str) -> None:
        return None

    def close(self) -> None:
        for process, requests in self.servers.values():
            requests.close()
            process.wait()
        self.servers.clear()


def _started_server(
    folder: Path, environment: Mapping[str, str]
) -> tuple[subprocess.Popen, socket.socket]:
    """A server (fork_server.py) and the socket of its requests. It ends when that is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", fork_server.__name__, str(theirs.fileno())],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return process, ours


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
    with _opened(command) as log:
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


def _opened(command: Command) -> IO[bytes]:
    """The log of a command, to be written."""
    return open(command.log, "ab" if command.appends else "wb")
