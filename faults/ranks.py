"""Kind `ranks`: kill one of two processes that train together, or fill their disk.

Whole models (`ddp`) and sharded ones (`fsdp2`), in every stage that trains. When a process has
died, the other one must end with a message that says so. Only if they had not met yet may it wait;
then it is stopped, as a launcher does. Then both are started again, until they end; the files must
be those of two processes that nobody interrupted.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.campaign import Kind
from faults.child import Command, CrashPoint, Ended, Running, start
from faults.disk import make_room, mount_small_disk, why_no_mount
from faults.judging import Outcome, judged, snapshot
from faults.world import Stage
from fgrlhf.base.processes import environments_of_group

RANKS = 2
STAGES = {  # with arguments that two processes can divide
    "sft": (),
    "fg_rm": (),
    "pref_rm": (),
    "oracle": (),
    "grpo": (),
    "dpo": ("train.batch_size=4",),
}
STRATEGIES = ("ddp", "fsdp2")
DEATHS = ("early", "half", "late", "checkpoint", "log", "full disk")
BEGUN = r"checkpoints/.*step-2"
CHECKPOINTS = (  # before its folder exists, when it is half written, before its last change
    BEGUN,
    rf"{BEGUN}.*/.*state\.json",
    r"checkpoints/step-2$",
)
GRACE = 60.0  # seconds in which a process must end after the other one, if they have met
MEETING = 5.0  # the same if they have not: it waits for the other one, and a launcher stops it
MOST_RUNS = 4
# what a process says when the other one has ended, or when it cannot write
LOSS = "another process of this run has ended"
FULL = "Make room and run the same command again"


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
class WholeGroup:
    """The files of an uninterrupted run, and the CPU seconds of each process."""

    files: dict[str, str]
    cpu: tuple[float, ...]
    bytes: int


@dataclass(frozen=True)
class Member:
    """How a process of a group ended.

    met: whether it had met the other process.
    stopped: whether it did not end by itself.
    """

    end: Ended
    met: bool
    stopped: bool

    @property
    def died(self) -> bool:
        """Whether the trial has killed it."""
        return self.end.killed and not self.stopped

    @property
    def waited(self) -> bool:
        """Whether it waited to meet the other process until it was stopped."""
        return self.stopped and not self.met

    @property
    def names_loss(self) -> bool:
        return LOSS in self.end.output

    @property
    def fault(self) -> str:
        """The bad verdict on its end; empty if there is nothing to complain about."""
        if self.end.has_traceback:
            return "traceback"
        if self.stopped:
            return "hangs" if self.met else ""
        silent = not self.names_loss and FULL not in self.end.output
        return "unnamed" if self.end.code != 0 and not self.died and silent else ""


class Ranks(Kind):
    """See the module's docstring."""

    name = "ranks"
    good = ("equal", "room enough", "skipped")
    bad = (
        "traceback",
        "hangs",
        "unnamed",
        "no death",
        "other content",
        "lost files",
        "stray files",
        "does not end",
    )
    cases = CASES

    def __init__(self, bench):
        super().__init__(bench)
        self.references: dict[tuple[str, str], WholeGroup] = {}

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
            ended = [
                member.end for member in run_together(self.stage(case).command, folder, "reference")
            ]
            if any(end.code for end in ended):
                output = "\n".join(end.output for end in ended)
                raise RuntimeError(f"the uninterrupted run of {key} failed:\n{output}")
            sizes = [path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file()]
            self.references[key] = WholeGroup(
                snapshot(folder / "run"), tuple(end.cpu for end in ended), sum(sizes)
            )

    def run(self, index: int, folder: Path) -> Outcome:
        case = self.case(index)
        if case.death == "full disk":
            return self._full_disk(case, folder)
        reference = self.references[case.stage, case.strategy]
        rank, plan = self._death(case, index, reference)
        return self._until_it_ends(case, folder, {rank: plan})

    def _death(self, case: Case, index: int, reference: WholeGroup) -> tuple[int, dict[str, Any]]:
        """The process that dies, and when."""
        rng = self.bench.rng(self.name, index)
        if case.death == "checkpoint":
            return 0, {"crash": CrashPoint(near=rng.choice(CHECKPOINTS))}
        if case.death == "log":  # as checkpoints, only the first process writes it
            return 0, {"crash": CrashPoint(near=r"metrics\.jsonl")}
        low = {"early": 0.0, "half": 0.4, "late": 0.8}[case.death]
        rank = rng.randrange(RANKS)
        return rank, {"die_after": (low + 0.2 * rng.random()) * reference.cpu[rank]}

    def _full_disk(self, case: Case, folder: Path) -> Outcome:
        if self.no_mount:
            return Outcome("skipped", self.no_mount)
        disk = folder / "run"
        disk.mkdir()
        mount_small_disk(disk, self.references[case.stage, case.strategy].bytes // 2)
        first = run_together(self.stage(case).command, folder, folder / "logs/full")
        make_room(disk)
        if all(member.end.code == 0 for member in first):
            return Outcome("room enough", str(case))
        fault = fault_of(first)
        if fault:
            return Outcome(fault, f"{case}\n{outputs_of(first)}")
        return self._until_it_ends(case, folder, {})

    def _until_it_ends(self, case: Case, folder: Path, plans: Mapping[int, dict]) -> Outcome:
        """Start both until they end; `plans` hold for the first start."""
        counts: dict[str, int] = {}
        for number in range(MOST_RUNS):
            chosen = plans if number == 0 else {}
            group = run_together(
                self.stage(case).command, folder, folder / f"logs/{number}", chosen
            )
            codes = [member.end.code for member in group]
            note = f"{case}: start {number}, exits {codes}\n{outputs_of(group)}"
            if number == 0 and plans:
                counts = counts_of(group)
            fault = fault_of(group) or missed(chosen, group)
            if fault:
                return Outcome(fault, note, counts=counts)
            if not any(codes):
                files = self.references[case.stage, case.strategy].files
                ends = [member.end for member in group]
                return judged(ends, files, folder / "run", str(case), counts=counts)
        return Outcome("does not end", note, counts=counts)


# ---- what a group says ---------------------------------------------------------------------------


def fault_of(group: Sequence[Member]) -> str:
    """The first bad verdict on the end of a group's processes; empty if there is none."""
    return next((member.fault for member in group if member.fault), "")


def missed(plans: Mapping[int, dict], group: Sequence[Member]) -> str:
    """`no death` if a process was to die at a file but did not; otherwise empty."""
    alive = [rank for rank, plan in plans.items() if "crash" in plan and not group[rank].died]
    return "no death" if alive else ""


def counts_of(group: Sequence[Member]) -> dict[str, int]:
    """How many processes were killed, and what became of the other ones."""
    killed = any(member.died for member in group)
    others = [member for member in group if killed and not member.died]
    return {
        "kills": int(killed),
        "named the loss": sum(member.names_loss for member in others),
        "had finished": sum(member.end.code == 0 for member in others),
        "stopped before they met": sum(member.waited for member in others),
    }


def outputs_of(group: Sequence[Member]) -> str:
    return "\n".join(member.end.output[-3_000:] for member in group)


# ---- running a group -----------------------------------------------------------------------------


def run_together(
    command: Command, folder: Path, log: str | Path, plans: Mapping[int, dict] | None = None
) -> list[Member]:
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
        plan = (plans or {}).get(rank, {})
        running.append(start(mine, folder, path, before=marks_meeting(path), **plan))
    wait_for_one(running)
    stopped = stop_the_others(running)
    return [Member(child.wait(), has_met(child), child.pid in stopped) for child in running]


def marks_meeting(log: Path) -> Callable[[], None]:
    """What a process calls before its program, to note when it has met the other one."""

    def before() -> None:
        import torch.distributed as distributed

        meet = distributed.init_process_group

        def meet_and_mark(*arguments, **options) -> None:
            meet(*arguments, **options)
            _mark(log).touch()

        distributed.init_process_group = meet_and_mark

    _mark(log).unlink(missing_ok=True)
    return before


def has_met(child: Running) -> bool:
    return _mark(child.log).exists()


def _mark(log: Path) -> Path:
    return log.with_suffix(".met")


def wait_for_one(running: Sequence[Running]) -> None:
    """Wait until one process has ended, at most as long as any child may take."""
    while not any(has_ended(child) for child in running):
        if time.monotonic() - running[0].started > 600:
            return
        time.sleep(0.02)


def stop_the_others(running: Sequence[Running]) -> set[int]:
    """Wait for the other processes, and kill those that do not end; returns their ids."""
    since = time.monotonic()
    stopped = set()
    while left := [child for child in running if not has_ended(child)]:
        seconds = time.monotonic() - since
        for child in left:
            if seconds > (GRACE if has_met(child) else MEETING):
                os.killpg(child.pid, signal.SIGKILL)
                stopped.add(child.pid)
        time.sleep(0.02)
    return stopped


def has_ended(child: Running) -> bool:
    """Whether a child has ended. It stays to be waited for."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child.pid, flags) is not None
