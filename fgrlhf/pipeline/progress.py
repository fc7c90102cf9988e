"""What a pipeline prints while it runs: a line for each event, and its stages' last output."""

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

PULSE = 60.0  # seconds between progress lines without a terminal
SHORTEST_PART = 12  # characters about one stage in the progress line of a terminal
BYTES_PER_MB = 2**20


@dataclass(frozen=True)
class StageProgress:
    """A stage that runs.

    Args:
      seconds: for which it has run, over all attempts.
      log: the file of its output.
    """

    name: str
    seconds: float
    log: Path


class Progress:
    """Prints what a pipeline does, and measures its duration and memory.

    Args:
      out: where it prints.

    Attributes:
      peak_mb: the most memory that this process and its descendants had together.
    """

    def __init__(self, out: IO[str]):
        self.out = out
        self.peak_mb = 0.0
        self._width = 0  # of the progress line on the terminal
        self.start()

    def start(self) -> None:
        """Let the clock begin at 0."""
        now = time.monotonic()
        self._started = now
        self._sampled = now
        self._pulse = now

    @property
    def seconds(self) -> float:
        """The time since `start`."""
        return time.monotonic() - self._started

    def say(self, line: str) -> None:
        """Print a line with the time."""
        self.clear_line()
        print(f"[{clock(self.seconds)}] {line}", file=self.out, flush=True)

    def watch(self, running: Sequence[StageProgress]) -> None:
        """Measure memory every second, and show the last output of each stage.

        A terminal shows it in a line that is redrawn. Without a terminal, a line per stage is
        printed every `PULSE` seconds.
        """
        now = time.monotonic()
        if now - self._sampled < 1.0 or not running:
            return
        self._sampled = now
        self.peak_mb = max(self.peak_mb, _resident_mb())
        parts = []
        for stage in running:
            parts.append(f"{stage.name} {clock(stage.seconds)} {_last_line(stage.log)}")
        if self.out.isatty():
            columns = shutil.get_terminal_size().columns
            line = progress_line(clock(self.seconds), parts, columns)
            self.clear_line()
            print(line, end="", file=self.out, flush=True)
            self._width = len(line)
        elif now - self._pulse >= PULSE:
            self._pulse = now
            for part in parts:
                self.say(f"  {part}"[:160])

    def clear_line(self) -> None:
        """Remove the progress line from the terminal."""
        if self._width:
            print("\r" + " " * self._width, end="\r", file=self.out, flush=True)
            self._width = 0


def progress_line(clock: str, parts: Sequence[str], columns: int) -> str:
    """The parts side by side, each shortened, in a terminal of this many columns.

    If there are too many of them for the terminal, only the first ones are shown.
    """
    width = max(columns // len(parts) - 8, SHORTEST_PART)
    shortened = [part[:width] for part in parts]
    # a line as wide as the terminal would wrap
    return f"[{clock}] {' | '.join(shortened)}"[: columns - 1]


def clock(seconds: float) -> str:
    """Minutes and seconds, as ` 1:05`."""
    return f"{int(seconds) // 60:2d}:{int(seconds) % 60:02d}"


def _last_line(path: Path) -> str:
    """The last line of a log. Progress bars redraw their line with carriage returns."""
    if not path.exists():
        return "(in the queue)"
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        text = file.read().decode("utf-8", "replace")
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    if not lines:
        return "(no output yet)"
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", lines[-1])


def _resident_mb() -> float:
    """Resident memory of this process and its descendants.

    An upper bound: pages that processes share count for each of them.
    """
    total = 0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / BYTES_PER_MB
