"""Kind `samplers`: kill a server that samples, or the run that asks it, or let the server lie.

With and without `sampler.one_step_behind`. A run survives what passes; any other fault ends it with
a message that names the server. No token may be invented, and no responses of other weights used:
the same command then leaves the files of an uninterrupted run.
"""

import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faults.child import Command, CrashPoint, Ended, Running
from faults.fake_sampler import LIES, PASSING
from faults.judging import Outcome, WholeRun, reference_run
from faults.ranks import has_ended
from faults.servers import AsksServer, alone, free_port, says, serving
from faults.world import Stage
from fgrlhf.base.files import read_json
from fgrlhf.samplers.shared_weights import VERSION_FILE, weights_version

COMPLETIONS, RELOAD = "/v1/completions", "/collective_rpc"
FAULTS = (
    "the run dies",
    "the run dies at a checkpoint",
    "the run dies while it publishes",
    "the server dies while it samples, and comes back",
    "the server dies while it loads weights, and comes back",
    "the server stays away",
    "stale weights",
    "lies",
    "faults that pass",
)
MODES = ("at once", "one step behind")
TRIALS_OF_EACH = 2
STEPS, RESPONSES = 5, 20  # of the stage `sampled`
AWAY = 0.2  # seconds until a killed server is started again


@dataclass(frozen=True)
class Case:
    """A trial: what happens, and how the server is used."""

    fault: str
    mode: str

    def __str__(self) -> str:
        return f"{self.fault} ({self.mode})"


CASES = tuple(Case(fault, mode) for fault in FAULTS for mode in MODES)


class Samplers(AsksServer):
    """See the module's docstring."""

    name = "samplers"
    trials = len(CASES) * TRIALS_OF_EACH

    def case(self, index: int) -> Case:
        return CASES[index % len(CASES)]

    def prepare(self, indices: Sequence[int]) -> None:
        """Measure uninterrupted runs. All servers have one port, which is part of the config."""
        self.port = free_port()
        self.references: dict[str, WholeRun] = {}
        self.publishing: dict[str, int] = {}
        for case in {self.case(index).mode: self.case(index) for index in indices}.values():
            mode = case.mode
            folder = self.bench.folder / "reference" / mode.replace(" ", "_")
            with self.server(folder, "server"):
                self.references[mode] = reference_run(self.stage(case), folder / "sampled")
            folder = folder / "publishing"
            with self.server(folder, "server"):
                self.publishing[mode] = self.start(case, folder, below="sync").wait().changes

    def whole(self, case: Case) -> WholeRun:
        return self.references[case.mode]

    def stage(self, case: Case) -> Stage:
        behind = str(case.mode == "one step behind").lower()
        stage = self.bench.world.stage("sampled", f"sampler.one_step_behind={behind}")
        environment = {
            **stage.command.environment,
            "SERVER_URL": f"http://127.0.0.1:{self.port}",
        }
        return Stage("sampled", replace(stage.command, environment=environment))

    def server(self, folder: Path, log: str, *faults: str) -> AbstractContextManager[Running]:
        """A server of `folder/sync`."""
        world = self.bench.world
        if not (folder / "sync").is_dir():
            shutil.copytree(world.causal, folder / "sync")
        arguments = (f"sync_dir={folder / 'sync'}", f"port={self.port}", *faults)
        command = Command("faults.fake_sampler", arguments, world.environment)
        return serving(command, folder / f"logs/{log}.txt", says("serving at"))

    # ---- trials ----------------------------------------------------------------------------------

    def run(self, index: int, folder: Path) -> Outcome:
        case = self.case(index)
        rng = self.bench.rng(self.name, index)
        response = f"at={rng.randrange(RESPONSES) + 1}"
        with alone(self.bench.folder / "samplers.lock"):
            if case.fault == "the server stays away":
                return self._refused(case, folder, f"fault={COMPLETIONS}", response)
            if case.fault == "stale weights":
                ckpt = f"ckpt={self.bench.world.other_causal}"
                return self._refused(case, folder, "fault=stale", ckpt)
            if case.fault == "lies":
                lie = sorted(LIES)[index // len(CASES) % len(LIES)]
                return self._refused(case, folder, f"fault={lie}", response)
            if case.fault == "faults that pass":
                fault = sorted(PASSING)[index // len(CASES) % len(PASSING)]
                return self._survives(case, folder, f"fault={fault}", response)
            if case.fault == "the server dies while it samples, and comes back":
                return self._comes_back(case, folder, f"fault={COMPLETIONS}", response)
            if case.fault == "the server dies while it loads weights, and comes back":
                load = f"at={rng.randrange(STEPS) + 1}"
                return self._comes_back(case, folder, f"fault={RELOAD}", load)
            return self._run_dies(case, folder, rng.random())

    def _run_dies(self, case: Case, folder: Path, moment: float) -> Outcome:
        plan: dict[str, Any] = {"die_after": moment * self.references[case.mode].cpu}
        if case.fault == "the run dies at a checkpoint":
            plan = {"crash": CrashPoint(near=r"checkpoints/.*step-2")}
        elif case.fault == "the run dies while it publishes":
            at = 1 + int(moment * self.publishing[case.mode])
            plan = {"crash": CrashPoint(at), "below": "sync"}
        with self.server(folder, "server"):
            first = self.start(case, folder, **plan).wait()
            return self.until_it_ends(case, folder, [first])

    def _survives(self, case: Case, folder: Path, *fault: str) -> Outcome:
        with self.server(folder, "server", *fault):
            first = self.start(case, folder).wait()
        return self.judge(case, folder, [first])

    def _refused(self, case: Case, folder: Path, *fault: str) -> Outcome:
        """The run must end with a message that names the server."""
        with self.server(folder, "faulty server", *fault):
            first = self.start(case, folder).wait()
        if first.code == 0:
            return Outcome("not refused", first.output[-2_000:], str(case))
        with self.server(folder, "server again"):
            return self.until_it_ends(case, folder, [first])

    def _comes_back(self, case: Case, folder: Path, *fault: str) -> Outcome:
        """The run survives, or finds that the server was restarted."""
        with self.server(folder, "server", *fault) as server:
            running = self.start(case, folder)
            while not has_ended(server) and not has_ended(running):
                time.sleep(0.02)
        time.sleep(AWAY)
        with self.server(folder, "server again"):
            return self.until_it_ends(case, folder, [running.wait()])

    def judge(self, case: Case, folder: Path, ended: list[Ended]) -> Outcome:
        outcome = super().judge(case, folder, ended)
        if outcome.verdict in self.good and half_written(folder / "sync"):
            note = f"{half_written(folder / 'sync')}: {outcome.note}"
            return replace(outcome, verdict="stray files", note=note)
        return outcome


def half_written(sync_dir: Path) -> str:
    """What is wrong with a folder of published weights; empty: nothing."""
    if (sync_dir / ".fgrlhf_next").exists():
        return "the folder of the next weights was left"
    version = read_json(sync_dir / VERSION_FILE)["weights_sha256"]
    return "" if version == weights_version(sync_dir) else "the version is not that of the weights"
