"""A stage ends when the pipeline that started it is gone, even if that was killed and could stop
nothing.

The pipeline names itself in an environment variable that everything below it inherits, through
shell scripts and launchers. Every command line of this package watches it (`run_main`). Where there
is no /proc, nothing is watched.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "FGRLHF_PIPELINE"
SECONDS = 0.5  # between looks
GRACE = 20.0  # seconds for an orderly end


def parent_mark(pid: int | None = None) -> dict[str, str]:
    """The environment variable by which a process makes itself the parent of those it starts; empty
    without /proc.
    """
    pid = os.getpid() if pid is None else pid
    start, machine = start_time(pid), _machine()
    return {} if start is None or machine is None else {VARIABLE: f"{machine}:{pid}:{start}"}


def start_time(pid: int) -> str | None:
    """When a live process was started, in clock ticks since boot: with its number this names it for
    good. None if it is dead.
    """
    try:
        # the name in the second field may hold spaces and brackets; the state and the start time
        # come after it
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _machine() -> str | None:
    """Where a process number means something: this start of this machine, and the container in
    it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink(
            "/proc/self/ns/pid"
        ).replace(":", "")
    except OSError:
        return None


def end_with_parent() -> None:
    """Watch the pipeline that is named in the environment, and end this process and its group when
    it is gone.
    """
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
        print(
            "the pipeline that started this is gone: ended; the next run continues",
            file=sys.stderr,
            flush=True,
        )
    os.killpg(
        os.getpgrp(), signal.SIGTERM
    )  # the script above this process and what it started, too
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
