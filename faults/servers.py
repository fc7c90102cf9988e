"""Kind `servers`: kill a reward server, or the run that asks it, or serve another model.

A run must survive a server that comes back, and else end with a message that names the server; no
reward may be invented. The same command then leaves the files of an uninterrupted run.
"""

import fcntl
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from faults.campaign import Kind, Outcome
from faults.child import Command, CrashPoint, Ended, Running, run, start
from faults.compare import compare, snapshot
from faults.ranks import has_ended
from faults.reference import Reference, reference_run
from faults.world import Stage

FAULTS = (
    "the run dies",
    "the run dies at a checkpoint",
    "the server comes back",
    "the server stays away",
    "another model",
)
TRIALS_OF_EACH = 4
VALUES = "values={error: -0.5, ok: 0.3}"
OTHER_VALUES = "values={error: -0.4, ok: 0.3}"
AWAY = 0.5  # seconds until a killed server is started again
STARTS = 120.0  # seconds a server may take to start, on any machine
TOKEN = "a-token-for-the-trials"


class Servers(Kind):
    """See the module's docstring."""

    name = "servers"
    good = ("equal", "refused, then equal")
    bad = (
        "traceback",
        "other content",
        "lost files",
        "stray files",
        "not refused",
        "unnamed",
        "does not end",
    )
    trials = len(FAULTS) * TRIALS_OF_EACH

    def sampled(self) -> list[int]:
        """Faults that do not depend on the speed of the machine."""
        return [FAULTS.index("the run dies at a checkpoint"), FAULTS.index("another model")]

    def prepare(self, indices: Sequence[int]) -> None:
        """Measure an uninterrupted run. All servers have one port, which is part of the config."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.sha256 = "0" * 64
        folder = self.bench.folder / "reference"
        with self.server(folder, VALUES, "server") as server:
            found = re.search(r"model_sha256: (\w+)", server.log.read_text())
            assert found is not None
            self.sha256 = found[1]
            self.reference: Reference = reference_run(self.stage(), folder / "served")

    def stage(self) -> Stage:
        stage = self.bench.world.stage("served")
        environment = {
            **stage.command.environment,
            "FGRLHF_REWARD_TOKEN": TOKEN,
            "SERVER_URL": f"http://127.0.0.1:{self.port}",
            "SERVER_SHA256": self.sha256,
        }
        return Stage("served", Command(stage.command.module, stage.command.arguments, environment))

    @contextmanager
    def server(self, folder: Path, values: str, log: str) -> Iterator[Running]:
        """A server that is ready, and is killed at the end of the block."""
        world = self.bench.world
        command = Command(
            "fgrlhf.cli.reward_serve",
            (f"ckpt={world.folder / 'rel_rm'}", values, f"port={self.port}"),
            {**world.environment, "FGRLHF_REWARD_TOKEN": TOKEN},
        )
        folder.mkdir(parents=True, exist_ok=True)
        # a server writes no files: count changes in a folder that does not exist
        running = start(command, folder, folder / f"logs/{log}.txt", below="no-folder")
        try:
            wait_until_ready(running)
            yield running
        finally:
            if not has_ended(running):
                running.kill()
            running.wait()

    def run(self, index: int, folder: Path) -> Outcome:
        fault = FAULTS[index % len(FAULTS)]
        with alone(self.bench.folder / "servers.lock"):
            if fault == "the server comes back":
                return self._comes_back(index, folder)
            if fault == "the server stays away":
                return self._stays_away(index, folder)
            if fault == "another model":
                return self._other_model(folder)
            return self._run_dies(fault, index, folder)

    def _moment(self, index: int) -> float:
        """A random share of the uninterrupted run."""
        return self.bench.rng(self.name, index).random()

    def _run_dies(self, fault: str, index: int, folder: Path) -> Outcome:
        plan = {"die_after": self._moment(index) * self.reference.cpu}
        if fault == "the run dies at a checkpoint":
            plan = {"crash": CrashPoint(near=r"checkpoints/.*step-2")}
        with self.server(folder, VALUES, "server"):
            first = run(self.stage().command, folder, folder / "logs/0.txt", **plan)
            return self._at_the_end(fault, folder, [first])

    def _comes_back(self, index: int, folder: Path) -> Outcome:
        with self.server(folder, VALUES, "server"):
            running = start(self.stage().command, folder, folder / "logs/0.txt")
            time.sleep(self._moment(index) * self.reference.seconds)
        time.sleep(AWAY)
        with self.server(folder, VALUES, "server again"):
            first = running.wait()
        row = "the server comes back"
        if first.code != 0 and not first.has_traceback:
            return Outcome("does not end", f"exit {first.code}\n{first.output[-2_000:]}", row)
        return self._judge(row, folder, [first])

    def _stays_away(self, index: int, folder: Path) -> Outcome:
        with self.server(folder, VALUES, "server"):
            running = start(self.stage().command, folder, folder / "logs/0.txt")
            time.sleep(self._moment(index) * self.reference.seconds)
        return self._then_with_server("the server stays away", folder, running.wait())

    def _other_model(self, folder: Path) -> Outcome:
        with self.server(folder, OTHER_VALUES, "other server"):
            first = run(self.stage().command, folder, folder / "logs/0.txt")
        row = "another model"
        if first.code == 0:
            return Outcome("not refused", first.output[-2_000:], row)
        if self.sha256[:8] not in first.output:
            return Outcome("unnamed", first.output[-2_000:], row)
        return self._then_with_server(row, folder, first)

    def _then_with_server(self, row: str, folder: Path, first: Ended) -> Outcome:
        """The first run may have ended before its fault; else it must name the server."""
        if first.code not in (0, 2) or first.has_traceback:
            return Outcome("traceback", f"exit {first.code}\n{first.output[-3_000:]}", row)
        if first.code == 2 and str(self.port) not in first.output:
            return Outcome("unnamed", first.output[-2_000:], row)
        with self.server(folder, VALUES, "server again"):
            outcome = self._at_the_end(row, folder, [first])
        if outcome.verdict == "equal" and first.code == 2:
            return Outcome("refused, then equal", outcome.note, row)
        return outcome

    def _at_the_end(self, row: str, folder: Path, before: list[Ended]) -> Outcome:
        """Run once more, with a server."""
        last = run(self.stage().command, folder, folder / "logs/last.txt")
        return self._judge(row, folder, [*before, last])

    def _judge(self, row: str, folder: Path, ended: list[Ended]) -> Outcome:
        for end in ended:
            if end.has_traceback:
                return Outcome("traceback", f"exit {end.code}\n{end.output[-3_000:]}", row)
        if ended[-1].code != 0:
            return Outcome("does not end", ended[-1].output[-3_000:], row)
        difference = compare(self.reference.files, snapshot(folder / "run"))
        return Outcome(difference.verdict if difference else "equal", str(difference), row)


def wait_until_ready(server: Running) -> None:
    """Raises `RuntimeError` if the server ends or is not ready in time."""
    end = time.monotonic() + STARTS
    while not (server.log.is_file() and "model_sha256" in server.log.read_text()):
        if has_ended(server) or time.monotonic() > end:
            raise RuntimeError(f"a server did not start:\n{server.log.read_text()}")
        time.sleep(0.02)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Only one trial at a time, because all use the same port."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
