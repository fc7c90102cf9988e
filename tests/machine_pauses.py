"""When the machine itself was slow: other guests of its host can take its processors away.

    python tests/machine_pauses.py

After a line on standard input it prints a JSON list of [start, end], in seconds of
`time.perf_counter`: in these times a fixed piece of work took more than four times its usual
processor time. Waiting for a processor does not count, so neither do other programs of this
machine.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

INTERVAL = 0.005  # seconds
SLOW = 4.0


@contextmanager
def noting_pauses() -> Iterator[list[tuple[float, float]]]:
    """A list that has the machine's pauses after the block. Another process watches for them."""
    pauses: list[tuple[float, float]] = []
    pipe = subprocess.PIPE
    watcher = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)
    try:
        yield pauses
    finally:
        printed, _ = watcher.communicate("\n")
    pauses += [(start, end) for start, end in json.loads(printed)]


def processor_seconds() -> float:
    """The processor time of a fixed piece of work, about 0.1 ms."""
    start = time.thread_time()
    sum(range(5000))
    return time.thread_time() - start


def wait_for_line(stop: threading.Event) -> None:
    sys.stdin.readline()
    stop.set()


def main() -> None:
    stop = threading.Event()
    threading.Thread(target=wait_for_line, args=[stop], daemon=True).start()
    rounds = []
    while not stop.is_set() or not rounds:
        start = time.perf_counter()
        taken = processor_seconds()
        time.sleep(INTERVAL)
        rounds.append((taken, start, time.perf_counter()))
    usual = sorted(taken for taken, _, _ in rounds)[len(rounds) // 2]
    print(json.dumps([(start, end) for taken, start, end in rounds if taken > SLOW * usual]))


if __name__ == "__main__":
    main()
