"""together: the same stage started twice, or three times, in one folder; and what a killed pipeline leaves running.

One does the work; another that meets it refuses, naming it, or finds the work done. Nothing is lost, and what is left equals the run alone.
"""

import os
import signal
import sys
import time
from pathlib import Path

from faults.campaign import Bench, Kind, Outcome
from faults.child import Command, Ended, Running, run, start
from faults.compare import compare, snapshot
from faults.kill import processes_with

STAGES = ("generate", "sft", "fg_rm", "pref_rm", "oracle", "evaluate", "dpo")
OFFSETS = (0.0, 0.1, 0.3, 0.6)  # of the stage's time alone
ORPHANS = 4
ORPHAN_WAIT = 15.0  # seconds an orphan may take to end


class Together(Kind):
    """See the module's docstring."""

    name = "together"
    good = ("equal", "orphan ended")
    bad = ("traceback", "other content", "lost files", "stray files", "both wrote", "other not named", "nobody finished", "orphan lives on")
    trials = len(STAGES) * len(OFFSETS) + ORPHANS

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self.names = STAGES

    def prepare(self, indices) -> None:
        for place in map(self.place, indices):
            if place is not None:
                self.bench.references.of(self.bench.world.stage(place[0]))

    def place(self, index: int) -> tuple[str, float] | None:
        """Stage and offset; None for a trial of an orphan."""
        count = self.count()
        orphans = max(1, ORPHANS * count // self.trials)
        if index >= count - orphans:
            return None
        number = index * len(STAGES) * len(OFFSETS) // max(count - orphans, 1)
        return STAGES[number % len(STAGES)], OFFSETS[number // len(STAGES) % len(OFFSETS)]

    def sampled(self) -> list[int]:
        return [0, self.count() - 1]

    def run(self, index: int, folder: Path) -> Outcome:
        place = self.place(index)
        if place is None:
            return orphan_trial(folder, index)
        name, offset = place
        number_of = 3 if self.bench.rng(self.name, index).random() < 0.2 else 2
        return self._together(name, offset, number_of, folder)

    def _together(self, name: str, offset: float, number_of: int, folder: Path) -> Outcome:
        stage = self.bench.world.stage(name)
        started: list[Running] = []
        for i in range(number_of):
            if i:
                time.sleep(offset * self.bench.references.of(stage).seconds)
            started.append(start(stage.command, folder, folder / f"logs/{i}.txt"))
        ended = [child.wait() for child in started]
        last = run(stage.command, folder, folder / "logs/last.txt")
        note = f"{name}, {offset:.0%} apart: exits {[end.code for end in ended]}, then {last.code}"
        row = "together"
        for end in (*ended, last):
            if end.has_traceback:
                return Outcome("traceback", f"{note}\n{end.output[-3_000:]}", row)
        difference = compare(self.bench.references.of(stage).files, snapshot(folder / "run"))
        if difference:
            verdict = "other content" if difference.other else "lost files" if difference.lost else "stray files"
            return Outcome(verdict, f"{note}: {difference}", row)
        if last.code != 0 or all(end.code for end in ended):
            return Outcome("nobody finished", f"{note}\n{last.output[-1_000:]}", row)
        if both_wrote(ended):
            return Outcome("both wrote", note, row)
        return self._naming(ended, note, row)

    def _naming(self, ended: list[Ended], note: str, row: str) -> Outcome:
        """A refused one has to name one of the others by its process number."""
        for end in ended:
            others = [str(other.pid) for other in ended if other is not end]
            if end.code != 0 and not any(pid in end.output for pid in others):
                return Outcome("other not named", f"{note}\n{end.output[-1_000:]}", row)
        return Outcome("equal", note, row)


def both_wrote(ended: list[Ended]) -> bool:
    """Whether two changed files during the same time."""
    spans = sorted((end.first_change, end.last_change) for end in ended if end.last_change)
    return any(later[0] < earlier[1] for earlier, later in zip(spans, spans[1:]))


# ---- orphans ---------------------------------------------------------------------------------------------------------


def orphan_pipeline(folder: str, seconds: str) -> None:
    """A pipeline of one stage that sleeps below a shell, as the stages' scripts run below one."""
    from fgrlhf.pipeline import Pipeline, Stage as PipelineStage

    command = ("bash", "-c", f"sleep {seconds}; true")
    Pipeline([PipelineStage("sleeps", command, (), ("x",))], Path(folder), Path(folder) / "run", {}, lanes=1).run()


def orphan_trial(folder: Path, index: int) -> Outcome:
    """Kill a pipeline while its stage runs: the stage and what it started have to end."""
    row = "orphans of a killed pipeline"
    seconds = f"{3_000 + index}.{os.getpid()}"  # a number that no other command line has
    child = start(Command("faults.together", (str(folder), seconds)), folder, folder / "logs/0.txt")
    sleeping = f"sleep\0{seconds}"
    if not _until(lambda: processes_with(sleeping), ORPHAN_WAIT):
        child.kill()
        return Outcome("nobody finished", f"the pipeline started nothing:\n{child.wait().output[-1_000:]}", row)
    child.kill()
    child.wait()
    alive = not _until(lambda: not processes_with(sleeping), ORPHAN_WAIT)
    for pid in processes_with(seconds):
        os.kill(pid, signal.SIGKILL)
    return Outcome("orphan lives on" if alive else "orphan ended", f"its `sleep {seconds}` {'lived on' if alive else 'ended'}", row)


def _until(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


if __name__ == "__main__":
    orphan_pipeline(*sys.argv[1:])
