"""Processes that belong together: those that train as a group, and a pipeline and its commands.

A command ends if the program that started it is gone, even if that program was killed.

Pipelines and fgrlhf/cli/torchrun.py write their process id to an environment variable that all
their descendants inherit, also through shell scripts. Every command of this package watches that
process (`run_main`). Without /proc, nothing is watched.
"""

import atexit
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from fgrlhf.base.shared_messages import print_once

VARIABLE = "FGRLHF_PIPELINE"
SECONDS = 0.5  # between two checks
GRACE = 20.0  # seconds between SIGTERM and SIGKILL


def parent_mark() -> dict[str, str]:
    """The environment variable with which this process marks its descendants; {} without /proc."""
    pid = os.getpid()
    start = start_time(pid)
    machine = _machine()
    return {} if start is None or machine is None else {VARIABLE: f"{machine}:{pid}:{start}"}


def start_time(pid: int) -> str | None:
    """The start time of a process in clock ticks since boot; None if it is dead.

    Process ids are reused; together with its start time an id identifies a process. psutil's
    `create_time` would not do: it counts from the epoch, so it changes when the clock is set.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field, the name in brackets, may contain spaces and brackets. The state and the
    # start time come after it.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _machine() -> str | None:
    """Identifies the scope of process ids: the current boot of the machine, and the container."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        container = os.readlink("/proc/self/ns/pid").replace(":", "")
    except OSError:
        return None
    return boot_id + container


def end_with_parent() -> None:
    """Watch the program named in the environment; end this process group when it is gone."""
    machine, _, process = os.environ.get(VARIABLE, "").partition(":")
    pid, _, start = process.partition(":")
    if pid.isdigit() and machine == _machine():
        threading.Thread(
            target=_watch, args=(int(pid), start), name="end-with-parent", daemon=True
        ).start()


def _watch(pid: int, start: str) -> None:
    while start_time(pid) == start:
        time.sleep(SECONDS)
    with suppress(OSError, ValueError):  # the terminal may be gone with the pipeline
        print_once("the program that started this is gone: ended; the next run continues")
    # the process group: also the script that runs this command, and its other children
    os.killpg(os.getpgrp(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


# ---- a group that trains -------------------------------------------------------------------------


def environments_of_group(processes: int) -> list[dict[str, str]]:
    """Environment variables of processes on this machine's CPU that form a group, by rank.

    It does what a launcher does, for programs that need the processes themselves. They meet at a
    port that is free now.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": "1",
    }
    return [{**common, "RANK": str(i), "LOCAL_RANK": str(i)} for i in range(processes)]


def end_process_of_group() -> None:
    """Destroy PyTorch's process group and end this process, if it is in one; else do nothing.

    If the interpreter ended as usual, a thread of the group could abort the process: it frees a
    tensor, for which it needs the interpreter. The launcher would take a run that has finished for
    a failed one (https://github.com/pytorch/pytorch/issues/190489). `destroy_process_group` ends
    these threads only if nothing refers to the group any more, but PyTorch's own caches do after
    sharded training. So this process ends as soon as all exit functions have run.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    distributed.destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
