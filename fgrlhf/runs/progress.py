"""Progress of anything that takes more than a few seconds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import time
from typing import Any, TextIO

from tqdm import tqdm

LINE_SECONDS = 15.0  # between the lines of a log file
LINE = "{desc}: {n_fmt}/{total_fmt} {unit}, {elapsed} < {remaining}, {rate_fmt}{postfix}"


class _Lines:
    """Writes each state of a bar as a line of its own, for output that is no terminal."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> None:
        line = text.strip()
        if line:
            self.stream.write(line + "\n")

    def flush(self) -> None:
        self.stream.flush()


def progress_bar(
    total: int | None,
    description: str,
    unit: str,
    initial: int = 0,
    enabled: bool = True,
    unit_scale: bool = False,
) -> tqdm:
    """A bar with rate and time left; outside a terminal, a line every 15 seconds.

    A bar inside another one disappears when it is done.

    Args:
      total: units of work; None if unknown.
      description: printed before the numbers.
      unit: name of a unit, such as "step".
      initial: units that an earlier call has done.
      enabled: False on all ranks but the first.
      unit_scale: print 1.5M instead of 1500000.
    """
    options: dict[str, Any] = {"leave": None}  # only if it is the outermost bar
    if not sys.stderr.isatty():
        options = {
            "file": _Lines(sys.stderr),
            "bar_format": LINE,
            "mininterval": LINE_SECONDS,
            "miniters": 0,  # a line may be due although nothing was counted (`show_phase`)
            "delay": LINE_SECONDS,
            "leave": False,
            "position": 0,  # a bar inside another one would move the cursor
        }
    return tqdm(
        total=total,
        desc=description,
        unit=unit,
        initial=initial,
        unit_scale=unit_scale,
        disable=not enabled,
        **options,
    )


def show_phase(bar: tqdm, phase: str) -> None:
    """Show what is done for the next units of a bar, where they take long.

    A terminal shows it at once, a log file if its next line is due.
    """
    if sys.stderr.isatty():
        bar.set_postfix_str(phase)
    else:
        bar.set_postfix_str(phase, refresh=False)
        bar.update(0)


@contextmanager
def paused(bar: tqdm) -> Iterator[None]:
    """The time of this block counts neither as elapsed nor in the bar's rate."""
    started = time()
    yield
    if not bar.disable:  # else it has no clock
        seconds = time() - started
        bar.start_t += seconds
        bar.last_print_t += seconds
