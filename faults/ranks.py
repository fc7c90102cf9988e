"""Kind `ranks`: kill one of two processes that train together, or fill their disk.

Whole models (`ddp`) and sharded ones (`fsdp2`). When a process has died, the other one must end
with a message, or is killed as a launcher would do. Then both are started again, until they
end; the files must be those of two processes that nobody interrupted.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.campaign import Kind, Outcome
from faults.child import Command, CrashPoint, Ended, Running, start
from faults.compare import compare, snapshot
from faults.disk import make_room, mount_small_disk, why_no_mount
from faults.world import Stage
from fgrlhf.runs.process_group import environments_of_group

RANKS = 2
STAGES = {  # with arguments that two processes can divide
    "oracle": (),
    "grpo": (),
    "dpo": ("train.batch_size=4",),
}
STRATEGIES = ("ddp", "fsdp2")
DEATHS = ("early", "half", "late", "checkpoint", "log", "full disk")
GRACE = 60.0  # seconds in which the other process may end by itself
MOST_RUNS = 4


@dataclass(frozen=True)
class Case:
    """A trial: what is trained, how the models are held, and what happens."""

    stage: str
    strategy: str
    death: str


CASES = tuple(
    Case(stage, strategy, death) for death in DEATHS for strategy in STRATEGIES for stage in STAGES
)


@dataclass(frozen=True)
class Reference:
    """The files of an uninterrupted run, and the CPU seconds of its longest process."""

    files: dict[str, str]
    cpu: float
    bytes: int


class Ranks(Kind):
    """See the module's docstring."""

    name = "ranks"
    good = ("equal", "room enough", "skipped")
    bad = ("traceback", "other content", "lost files", "stray files", "does not end")
    trials = len(CASES)
    sample = 2

    def __init__(self, bench):
        super().__init__(bench)
        self.references: dict[tuple[str, str], Reference] = {}

    def case(self, index: int) -> Case:
        return CASES[index * len(CASES) // self.count() % len(CASES)]

    def sampled(self) -> list[int]:
        """PPO with sharded models: a death and a full disk."""
        wanted = [Case("oracle", "fsdp2", death) for death in ("half", "full disk")]
        return [index for index in range(self.count()) if self.case(index) in wanted]

    def stage(self, case: Case) -> Stage:
        arguments = (f"parallel.strategy={case.strategy}", *STAGES[case.stage])
        return self.bench.world.stage(case.stage, *arguments)

    def prepare(self, indices: Sequence[int]) -> None:
        self.no_mount = why_no_mount(self.bench.folder / "mount")
        for index in indices:
            case = self.case(index)
            key = (case.stage, case.strategy)
            if key in self.references:
                continue
            folder = self.bench.folder / "reference" / "-".join(key)
            folder.mkdir(parents=True, exist_ok=True)
            ended = run_together(self.stage(case).command, folder, "reference")
            if any(end.code for end in ended):
                output = "\n".join(end.output for end in ended)
                raise RuntimeError(f"the uninterrupted run of {key} failed:\n{output}")
            sizes = [path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file()]
            self.references[key] = Reference(
                snapshot(folder / "run"), max(end.cpu for end in ended), sum(sizes)
            )

    def run(self, index: int, folder: Path) -> Outcome:
        case = self.case(index)
        if case.death == "full disk":
            return self._full_disk(case, folder)
        reference = self.references[case.stage, case.strategy]
        rank, plan = self._death(case, index, reference)
        return self._until_it_ends(case, folder, {rank: plan}, folder)

    def _death(self, case: Case, index: int, reference: Reference) -> tuple[int, dict[str, Any]]:
        """The process that dies, and when. Only the first one writes files."""
        if case.death == "checkpoint":
            return 0, {"crash": CrashPoint(near=r"checkpoints/.*step-2")}
        if case.death == "log":
            return 0, {"crash": CrashPoint(near=r"metrics\.jsonl")}
        low = {"early": 0.0, "half": 0.4, "late": 0.8}[case.death]
        rng = self.bench.rng(self.name, index)
        return rng.randrange(RANKS), {"die_after": (low + 0.2 * rng.random()) * reference.cpu}

    def _full_disk(self, case: Case, folder: Path) -> Outcome:
        if self.no_mount:
            return Outcome("skipped", self.no_mount)
        disk = folder / "disk"
        disk.mkdir()
        mount_small_disk(disk, self.references[case.stage, case.strategy].bytes // 2)
        first = run_together(self.stage(case).command, disk, folder / "logs/full")
        make_room(disk)
        if all(end.code == 0 for end in first):
            return Outcome("room enough", str(case))
        for end in first:
            if end.has_traceback:
                return Outcome("traceback", f"{case}\n{end.output[-3_000:]}")
        return self._until_it_ends(case, disk, {}, folder)

    def _until_it_ends(
        self, case: Case, folder: Path, plans: Mapping[int, dict], logs: Path
    ) -> Outcome:
        """Start both until they end; `plans` hold for the first start."""
        kills = 0
        for number in range(MOST_RUNS):
            chosen = plans if number == 0 else {}
            ended = run_together(self.stage(case).command, folder, logs / f"logs/{number}", chosen)
            outputs = "\n".join(end.output[-3_000:] for end in ended)
            note = f"{case}: start {number}, exits {[end.code for end in ended]}\n{outputs}"
            if any(end.has_traceback for end in ended):
                return Outcome("traceback", note, counts={"kills": kills})
            kills += any(end.killed for end in ended)
            if all(end.code == 0 for end in ended):
                files = self.references[case.stage, case.strategy].files
                difference = compare(files, snapshot(folder / "run"))
                verdict = difference.verdict if difference else "equal"
                return Outcome(verdict, f"{difference}\n{note}", counts={"kills": kills})
        return Outcome("does not end", note, counts={"kills": kills})


def run_together(
    command: Command, folder: Path, log: str | Path, plans: Mapping[int, dict] | None = None
) -> list[Ended]:
    """Run a command in two processes of one group.

    Args:
      log: start of the names of the logs, in `folder` if it is relative.
      plans: further arguments of `start` by rank, such as when to die.
    """
    running: list[Running] = []
    for rank, variables in enumerate(environments_of_group(RANKS)):
        environment = {**command.environment, **variables}
        mine = Command(command.module, command.arguments, environment)
        path = folder / f"{log}-rank{rank}.txt"
        running.append(start(mine, folder, path, **(plans or {}).get(rank, {})))
    wait_for_one(running)
    end = time.monotonic() + GRACE
    while not all(has_ended(child) for child in running) and time.monotonic() < end:
        time.sleep(0.02)
    for child in running:
        if not has_ended(child):
            os.killpg(child.pid, signal.SIGKILL)
    return [child.wait() for child in running]


def wait_for_one(running: Sequence[Running]) -> None:
    """Wait until one process has ended, at most as long as any child may take."""
    while not any(has_ended(child) for child in running):
        if time.monotonic() - running[0].started > 600:
            return
        time.sleep(0.02)


def has_ended(child: Running) -> bool:
    """Whether a child has ended. It stays to be waited for."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child.pid, flags) is not None
