"""Calls in a thread, such as requests that wait for another machine."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Runs `call()` in a thread, from now on.

    The thread ends with the process, so a call that never returns does not keep it alive.
    """

    def __init__(self, call: Callable[[], Result]):
        self.done = threading.Event()
        self._results: list[Result] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call: Callable[[], Result]) -> None:
        try:
            self._results.append(call())
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()

    def result(self) -> Result:
        """Wait for the result. Raises what the call raised."""
        self.done.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]


def wait_for(event: threading.Event, seconds: float) -> bool:
    """Whether the event is set within so many seconds. Tests replace it."""
    return event.wait(seconds)


def within(
    seconds: float,
    call: Callable[[], Result],
    wait: Callable[[threading.Event, float], bool] = wait_for,
) -> Result:
    """The result of `call()`, which gets so many seconds in all.

    Raises:
      TimeoutError: it takes longer. Its thread is left alone.
    """
    running = Background(call)
    if not wait(running.done, seconds):
        raise TimeoutError(f"no complete answer within {seconds:g} seconds")
    return running.result()


def run_parallel(calls: Sequence[Callable[[], Result]], limit: int) -> list[Result]:
    """The results of the calls, in their order; at most `limit` of them run at the same time.

    After an error or an interruption no further call starts. The threads end with the process.

    Raises:
      The error of the first call, in their order, that failed.
    """
    waiting = deque(enumerate(calls))
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while waiting and not errors:
            try:
                place, call = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                results[place] = call()
            except BaseException as error:
                errors[place] = error

    workers = [Background(work) for _ in range(min(limit, len(calls)))]
    try:
        for worker in workers:
            worker.result()
    finally:
        waiting.clear()
    if errors:
        raise errors[min(errors)]
    return [results[place] for place in range(len(calls))]
