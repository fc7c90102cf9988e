"""Peak memory of this process and of the commands it starts.

`ru_maxrss` of getrusage survives fork and exec: a small program that a large process starts has
the peak of that process. Linux keeps the peak of the program itself as VmHWM, but only until it
ends.
"""

import resource
import sys
from contextlib import suppress
from pathlib import Path

MB = 2**20
# ru_maxrss: bytes on macOS, KiB elsewhere
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
# The kernel sums its counters of pages per core, so two readings differ by some pages.
TOLERANCE_MB = 16.0


def own_peak_mb() -> float:
    """Highest resident memory in MB of this process."""
    peak = _high_water_mb("self")
    if peak is None:  # not on Linux
        return maximum_mb(resource.getrusage(resource.RUSAGE_SELF))
    return peak


def peak_memory_mb() -> float:
    """Highest resident memory in MB of this process or of any single child it has waited for.

    What a child inherits is at most this process's own peak, so it does not matter here.
    """
    return max(own_peak_mb(), maximum_mb(resource.getrusage(resource.RUSAGE_CHILDREN)))


def maximum_mb(usage: resource.struct_rusage) -> float:
    """`ru_maxrss` in MB."""
    return usage.ru_maxrss * RSS_UNIT / MB


class PeakMemory:
    """Peak memory of a command: that of the largest of its processes.

    The kernel's maximum is exact, and includes the processes that the command has started, if it
    is above what the command inherited. Otherwise, it is the highest of the samples of the command
    and its descendants.

    Args:
      pid: of the command.
      parent: the process that has just started it; None: this one.
    """

    def __init__(self, pid: int, parent: int | None = None):
        self.pid = pid
        inherited_mb = None if parent is None else _high_water_mb(parent)
        self.inherited_mb = own_peak_mb() if inherited_mb is None else inherited_mb
        self.sampled_mb = 0.0  # stays 0 if the command ends at once
        self.sample()

    def sample(self) -> None:
        """Read the peaks so far. They are lost once the processes have ended: call this often."""
        waiting = [self.pid]
        while waiting:
            pid = waiting.pop()
            waiting += _children(pid)
            peak = _high_water_mb(pid)
            if peak is not None:  # a process that has ended has none
                self.sampled_mb = max(self.sampled_mb, peak)

    def after(self, maximum: float) -> float:
        """The peak in MB.

        Args:
          maximum: `maximum_mb` of the usage that `os.wait4` returned for the command.
        """
        if sys.platform != "linux" or maximum > self.inherited_mb + TOLERANCE_MB:
            return maximum
        return self.sampled_mb


def _children(pid: int) -> list[int]:
    """The running children of a process; none if it has ended or not on Linux."""
    children = []
    with suppress(OSError):  # the process or one of its threads has just ended
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            children += [int(child) for child in path.read_text(encoding="ascii").split()]
    return children


def _high_water_mb(pid: int | str) -> float | None:
    """The highest resident memory of a process so far; None if it has ended or not on Linux."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        return None
    return None
