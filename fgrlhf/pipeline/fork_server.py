"""Runs the programs of stages in forks of a process that has imported PyTorch and transformers.

These imports take 3.5 CPU seconds (benchmarks/RESULTS.md), more than all else that some stages of
tiny models do. So a pipeline starts one process that imports them, and each of its stages is a fork
of that process:

    pipeline - server -+- stage `python -m MODULE ...`
                       +- stage `bash SCRIPT ...` - bash, and a fork for each `python -m` in it

A script finds the server of its stage by the variable `VARIABLE`, the number of a socket that it
inherits. The program that it would start (fgrlhf/cli/stage_script.py) asks for a fork instead, and
waits until that has ended.

A fork is what a new process would be: its environment, folder, streams, arguments, session and
signals are those of the command. The server imports no module of this repository that a fork
could find there, so changed code counts. Libraries read some environment variables while they are
imported, so a program starts Python anew if a variable outside `HARMLESS` differs. So does every
program if an import has failed, or has started threads, which a fork would lack. (OpenBLAS starts
its own again in a fork.)

Every message is JSON and one packet. Requests, with four file descriptors: stdin, stdout, stderr
and the socket for the answers.

    {"arguments": [...], "folder": "...", "environment": {...}}

Answers: {"pid": ...}, and after its end {"exit": ..., "maximum_mb": ...}, in which exit is -n if
signal n ended it.
"""

import gc
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from fgrlhf.runs.memory import maximum_mb

VARIABLE = "FGRLHF_FORK_SERVER"  # a number; `off` in the pipeline's environment: no server
LARGEST = 2**20  # bytes of a message
# What stages import. numpy and scipy come first, with the threads of OpenBLAS.
PRELOADED = (
    "numpy",
    "scipy.optimize",
    "torch",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "transformers.models.t5.modeling_t5",
    "accelerate",
    "peft",
)
WITH_THREADS = 2  # of `PRELOADED`, from the start
# variables that no library reads while it is imported
HARMLESS = frozenset(
    ["_", "SHLVL", "PWD", "OLDPWD", "PATH", "VIRTUAL_ENV", "TOKENIZERS_PARALLELISM"]
    + ["TASK", "SCALE", "VARIANT", "DATA_DIR", "OUTPUT_DIR", "PROCESSES"]
)
OWN_PREFIX = "FGRLHF_"
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def available() -> bool:
    """Whether stages may be forked here.

    With a GPU they may not: if a library asks for the GPUs while it is imported, no fork can use
    them.
    """
    if os.environ.get(VARIABLE) == "off" or any(os.path.exists(path) for path in GPU_DRIVERS):
        return False
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a library may read while it is imported."""
    return {
        name: value
        for name, value in environment.items()
        if name not in HARMLESS and not name.startswith(OWN_PREFIX)
    }


def runs_module(arguments: Sequence[str]) -> bool:
    """Whether the command is `python -m MODULE ...`."""
    return len(arguments) > 2 and arguments[1] == "-m" and "python" in Path(arguments[0]).name


def request(
    server: socket.socket,
    arguments: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    streams: Sequence[int],
) -> socket.socket:
    """Ask for a fork that runs a command. Returns the socket of the answers.

    Raises:
      OSError: there is no server, or the environment is too large for a message.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    message = {"arguments": [*arguments], "folder": folder, "environment": {**environment}}
    try:
        with theirs:
            socket.send_fds(server, [json.dumps(message).encode()], [*streams, theirs.fileno()])
    except BaseException:
        ours.close()
        raise
    return ours


# ---- in a script ---------------------------------------------------------------------------------


def run_in_fork(command: Sequence[str]) -> None:
    """Run a command of a stage's script in a fork, and end as it does.

    Returns if that is not possible. Signals for the stage reach the fork too, so this process
    ignores them and waits.
    """
    try:
        with socket.socket(fileno=int(os.environ[VARIABLE])) as server:
            answers = request(server, command, os.getcwd(), os.environ, (0, 1, 2))
    except (KeyError, ValueError, OSError):
        return
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    exit_code = -signal.SIGKILL  # if the server is gone
    while message := answers.recv(LARGEST):
        exit_code = json.loads(message).get("exit", exit_code)
    _end_as(exit_code)


def _end_as(exit_code: int) -> NoReturn:
    """End this process as another one has ended."""
    if exit_code < 0:
        if exit_code != -signal.SIGKILL:  # whose handler cannot be set
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code)


# ---- the server ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Imported:
    """What the server has imported.

    Args:
      usable: whether a fork may use it, as the module's docstring says.
      read: the variables that it may have read.
      added: the variables that it has set.
    """

    usable: bool
    read: dict[str, str]
    added: dict[str, str]

    @classmethod
    def now(cls) -> "_Imported":
        """Import `PRELOADED`."""
        before = dict(os.environ)
        usable = _import_preloaded()
        added = {name: value for name, value in os.environ.items() if before.get(name) != value}
        return cls(usable, read_by_imports(before), added)


@dataclass
class _Request:
    """A command, in the process that runs it."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    streams: list[int]

    def run(self, imported: _Imported, for_script: bool) -> None:
        """Become the command.

        Args:
          for_script: whether a script has asked, so its session is that of its stage.
        """
        usable = imported.usable and read_by_imports(self.environment) == imported.read
        usable = usable and os.path.samefile(self.folder, os.getcwd())
        if not for_script:
            os.setsid()
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
            os.close(stream)
        if usable and runs_module(self.arguments) and self._is_this_python():
            os.environ.pop(VARIABLE, None)
            os.environ.update(imported.added)
            _run_module(self.arguments)
        elif not for_script and self.arguments[0] == "bash":
            _run_script(self.arguments, imported)
        else:
            os.execvpe(self.arguments[0], self.arguments, os.environ)

    def _is_this_python(self) -> bool:
        found = shutil.which(self.arguments[0])
        return found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)


def _run_module(arguments: Sequence[str]) -> None:
    """Do what `python -m MODULE ...` does after the start of the interpreter."""
    for name in list(sys.modules):
        if name.split(".")[0] == "fgrlhf":
            del sys.modules[name]
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # since this package was imported
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.orig_argv = [*arguments]
    sys.argv = ["-m", *arguments[3:]]
    runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)


def _run_script(arguments: Sequence[str], imported: _Imported) -> None:
    """Run a script, and fork the programs that it asks for, until all of them have ended."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, VARIABLE: str(theirs.fileno())}
    script = subprocess.Popen(arguments, env=environment, pass_fds=[theirs.fileno()])
    theirs.close()
    # the script and its programs have these signals too, and may take time to end
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    served = _serve(ours, script.pid)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    if isinstance(served, int):
        _end_as(served)
    served.run(imported, for_script=True)


@dataclass
class _Child:
    """A process that runs a command, and the socket of the answers; None for the script itself."""

    pid: int
    answers: socket.socket | None

    def started(self) -> None:
        self._send({"pid": self.pid})

    def ended(self) -> int:
        """Answer how it has ended, and return its exit code."""
        _, status, usage = os.wait4(self.pid, 0)
        exit_code = os.waitstatus_to_exitcode(status)
        self._send({"exit": exit_code, "maximum_mb": maximum_mb(usage)})
        if self.answers is not None:
            self.answers.close()
        return exit_code

    def _send(self, message: Mapping[str, float]) -> None:
        with suppress(OSError):  # nobody waits any more
            if self.answers is not None:
                self.answers.send(json.dumps(message).encode())


def _serve(requests: socket.socket, script: int | None = None) -> _Request | int:
    """Fork a process for every request.

    Args:
      script: process id of the script that asks; None: a pipeline asks.

    Returns:
      The request, in a fork. Otherwise the exit code of the script, once it and all forks have
      ended; or 0 if the pipeline is gone.
    """
    exit_code = 0
    children: dict[int, _Child] = {}  # by the file descriptor of the process
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)

        def watch(child: _Child) -> None:
            process = os.pidfd_open(child.pid)
            children[process] = child
            selector.register(process, selectors.EVENT_READ)

        if script is not None:
            watch(_Child(script, None))
        while script is None or children:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    child = children.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    ended = child.ended()
                    exit_code = ended if child.answers is None else exit_code
                    continue
                message, streams, _, _ = socket.recv_fds(requests, LARGEST, 4)
                if not message:
                    selector.unregister(requests)
                    if script is None:
                        return 0
                    continue
                child = _Child(os.fork(), socket.socket(fileno=streams.pop()))
                if child.pid == 0:
                    _close(requests, child, children)
                    return _Request(**json.loads(message), streams=streams)
                for stream in streams:
                    os.close(stream)
                child.started()
                watch(child)
    return exit_code


def _close(requests: socket.socket, child: _Child, others: Mapping[int, _Child]) -> None:
    """Close in a fork what belongs to the server."""
    requests.close()
    for process, other in others.items():
        os.close(process)
        if other.answers is not None:
            other.answers.close()
    if child.answers is not None:
        child.answers.close()


def _import_preloaded() -> bool:
    """Import `PRELOADED`. Returns whether this failed nowhere and started no threads."""
    threads = 0
    for i, name in enumerate(PRELOADED):
        try:
            import_module(name)
        except Exception:  # a program that needs it prints the error
            return False
        if i < WITH_THREADS:
            threads = len(os.listdir("/proc/self/task"))
    return len(os.listdir("/proc/self/task")) == threads


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    imported = _Imported.now()
    gc.freeze()  # a fork that collects garbage would copy all of this memory
    served = _serve(requests)
    if isinstance(served, _Request):
        served.run(imported, for_script=False)


if __name__ == "__main__":
    main()
