"""Seconds that the phases of a training step take."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter


class PhaseClock:
    """Times named blocks of one step.

    clock = PhaseClock()
    with clock.time("rollout"):
        ...
    clock.seconds(["rollout"])  # {"time/rollout": 1.6}
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Measure the block, in seconds; a later block with the same name replaces the first."""
        started = perf_counter()
        yield
        self._seconds[phase] = perf_counter() - started

    def seconds(self, phases: Iterable[str]) -> dict[str, float]:
        """The metrics `time/<phase>` of these phases."""
        return {f"time/{phase}": self._seconds[phase] for phase in phases}
