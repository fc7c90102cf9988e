"""Kind `streams`: standard streams that are closed, have another encoding, or lose their reader.

Schedulers close streams, terminals are not always UTF-8, and `| head` stops reading. The work must
be done as usual, or the program must end with a message; never with a traceback.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from faults.campaign import Kind
from faults.child import run
from faults.judging import Outcome, judged

STAGES = ("sft", "fg_rm", "pref_rm", "oracle", "dpo", "generate", "evaluate")

ENDED_BY_PIPE = 128 + signal.SIGPIPE


def _closed(*descriptors: int) -> Callable[[], None]:
    def close() -> None:
        for descriptor in descriptors:
            os.close(descriptor)
            setattr(sys, ("stdin", "stdout", "stderr")[descriptor], None)

    return close


def _encoded(encoding: str) -> Callable[[], None]:
    def reopen() -> None:
        for name in ("stdout", "stderr"):
            getattr(sys, name).reconfigure(encoding=encoding, errors="strict")

    return reopen


def _without_reader() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


FAULTS: dict[str, Callable[[], None]] = {
    "no output": _closed(1),
    "no errors": _closed(2),
    "no streams": _closed(0, 1, 2),
    "ASCII": _encoded("ascii"),
    "Latin-1": _encoded("latin-1"),
    "no reader": _without_reader,
}


class Streams(Kind):
    """See the module's docstring."""

    name = "streams"
    good = ("equal", "ended by the pipe")
    bad = ("traceback", "other content", "lost files", "stray files", "does not end")
    cases = tuple((stage, fault) for fault in FAULTS for stage in STAGES)

    def prepare(self, indices) -> None:
        for index in indices:
            self.bench.references.of(self.bench.world.stage(self.case(index)[0]))

    def run(self, index: int, folder: Path) -> Outcome:
        name, fault = self.case(index)
        stage = self.bench.world.stage(name)
        ended = run(stage.command, folder, folder / "logs/0.txt", before=FAULTS[fault])
        note = f"{name}, {fault}"
        by_pipe = fault == "no reader" and ended.code == ENDED_BY_PIPE
        if by_pipe and "Traceback" not in ended.output:
            return Outcome("ended by the pipe", note)
        return judged([ended], self.bench.references.of(stage).files, folder / "run", note)
