"""Kind `servers`: kill a reward server, or the run that asks it, or serve another model.

A run must survive a server that comes back, and else end with a message that names the server; no
reward may be invented. The same command then leaves the files of an uninterrupted run.
"""

import fcntl
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from faults.campaign import Kind
from faults.child import Command, CrashPoint, Ended, Running, start
from faults.judging import Outcome, WholeRun, judged, reference_run
from faults.ranks import has_ended
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
MOST_RUNS = 4


# ---- servers in general --------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def serving(command: Command, log: Path, is_ready: Callable[[Running], bool]) -> Iterator[Running]:
    """A server that is ready; it is killed at the end of the block.

    Raises:
      RuntimeError: it ends, or is not ready in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # a server writes no files: count changes in a folder that does not exist
    running = start(command, log.parent, log, below="no-folder")
    end = time.monotonic() + STARTS
    try:
        while not is_ready(running):
            if has_ended(running) or time.monotonic() > end:
                raise RuntimeError(f"a server did not start:\n{log.read_text()}")
            time.sleep(0.02)
        yield running
    finally:
        if not has_ended(running):
            running.kill()
        running.wait()


def says(text: str) -> Callable[[Running], bool]:
    """Whether a server has said a text."""
    return lambda server: server.log.is_file() and text in server.log.read_text()


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Only one trial at a time, because all use the same port."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- trials --------------------------------------------------------------------------------------


class AsksServer(Kind):
    """A kind whose runs ask a server at `port`, which is part of their config."""

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
    port: int

    def stage(self, case: Any) -> Stage:
        """The stage of a case."""
        raise NotImplementedError("abstract: a kind must define `stage`")

    def whole(self, case: Any) -> WholeRun:
        """Its uninterrupted run."""
        raise NotImplementedError("abstract: a kind must define `whole`")

    def start(self, case: Any, folder: Path, number: int = 0, **plan: Any) -> Running:
        return start(self.stage(case).command, folder, folder / f"logs/{number}.txt", **plan)

    def until_it_ends(self, case: Any, folder: Path, ended: list[Ended]) -> Outcome:
        """Run the same command until it ends, with a server."""
        while ended[-1].code != 0 and len(ended) < MOST_RUNS:
            if self.problem(ended[-1]):
                break
            ended.append(self.start(case, folder, len(ended)).wait())
        return self.judge(case, folder, ended)

    def problem(self, end: Ended) -> str:
        """What is wrong with the end of a run; empty: nothing."""
        if end.has_traceback:
            return "traceback"
        is_named = f"127.0.0.1:{self.port}" in end.output
        return "" if end.killed or end.code == 0 or is_named else "unnamed"

    def judge(self, case: Any, folder: Path, ended: list[Ended]) -> Outcome:
        row = f"{self.name}: {case}"
        outcome = judged(ended, self.whole(case).files, folder / "run", row=row)
        for end in ended:
            if self.problem(end):
                return replace(outcome, verdict=self.problem(end))
        refused = outcome.verdict == "equal" and any(end.code == 2 for end in ended)
        return replace(outcome, verdict="refused, then equal") if refused else outcome


class Servers(AsksServer):
    """See the module's docstring."""

    name = "servers"
    trials = len(FAULTS) * TRIALS_OF_EACH

    def prepare(self, indices: Sequence[int]) -> None:
        """Measure an uninterrupted run. All servers have one port, which is part of the config."""
        self.port = free_port()
        self.sha256 = "0" * 64
        folder = self.bench.folder / "reference"
        with self.server(folder, VALUES, "server") as server:
            found = re.search(r"model_sha256: (\w+)", server.log.read_text())
            assert found is not None
            self.sha256 = found[1]
            self.reference = reference_run(self.stage(FAULTS[0]), folder / "served")

    def whole(self, case: str) -> WholeRun:
        return self.reference

    def stage(self, case: str) -> Stage:
        stage = self.bench.world.stage("served")
        environment = {
            **stage.command.environment,
            "FGRLHF_REWARD_TOKEN": TOKEN,
            "SERVER_URL": f"http://127.0.0.1:{self.port}",
            "SERVER_SHA256": self.sha256,
        }
        return Stage("served", replace(stage.command, environment=environment))

    def server(self, folder: Path, values: str, log: str) -> AbstractContextManager[Running]:
        world = self.bench.world
        command = Command(
            "fgrlhf.cli.reward_serve",
            (f"ckpt={world.folder / 'rel_rm'}", values, f"port={self.port}"),
            {**world.environment, "FGRLHF_REWARD_TOKEN": TOKEN},
        )
        return serving(command, folder / f"logs/{log}.txt", says("model_sha256"))

    def run(self, index: int, folder: Path) -> Outcome:
        fault = FAULTS[index % len(FAULTS)]
        moment = self.bench.rng(self.name, index).random()  # a share of the uninterrupted run
        with alone(self.bench.folder / "servers.lock"):
            if fault == "another model":
                return self._other_model(fault, folder)
            if fault.startswith("the run dies"):
                return self._run_dies(fault, moment, folder)
            return self._server_dies(fault, moment, folder)

    def _run_dies(self, fault: str, moment: float, folder: Path) -> Outcome:
        plan: dict[str, Any] = {"die_after": moment * self.reference.cpu}
        if fault == "the run dies at a checkpoint":
            plan = {"crash": CrashPoint(near=r"checkpoints/.*step-2")}
        with self.server(folder, VALUES, "server"):
            first = self.start(fault, folder, **plan).wait()
            return self.until_it_ends(fault, folder, [first])

    def _server_dies(self, fault: str, moment: float, folder: Path) -> Outcome:
        with self.server(folder, VALUES, "server"):
            running = self.start(fault, folder)
            time.sleep(moment * self.reference.seconds)
        if fault == "the server stays away":
            first = running.wait()
            with self.server(folder, VALUES, "server again"):
                return self.until_it_ends(fault, folder, [first])
        time.sleep(AWAY)
        with self.server(folder, VALUES, "server again"):
            return self.judge(fault, folder, [running.wait()])

    def _other_model(self, fault: str, folder: Path) -> Outcome:
        with self.server(folder, OTHER_VALUES, "other server"):
            first = self.start(fault, folder).wait()
        if first.code == 0 or self.sha256[:8] not in first.output:
            verdict = "unnamed" if first.code else "not refused"
            return Outcome(verdict, first.output[-2_000:], f"{self.name}: {fault}")
        with self.server(folder, VALUES, "server again"):
            return self.until_it_ends(fault, folder, [first])
