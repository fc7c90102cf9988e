"""Kind `together`: start a stage two or three times in one folder, or kill a pipeline.

One process does the work; the others refuse and name it, or find the work done. Nothing is lost,
and the files are those of a single run. The processes of a killed pipeline must end.
"""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from faults.campaign import Kind
from faults.child import Command, Ended, Running, run, start
from faults.judging import Outcome, judged
from faults.kill import processes_with
from faults.world import ROOT

STAGES = ("generate", "sft", "fg_rm", "pref_rm", "oracle", "evaluate", "dpo")
OFFSETS = (0.0, 0.1, 0.3, 0.6)  # fractions of the stage's run time
ORPHANS = 4
STARTS = 300.0  # seconds a stage may take to start, on any machine
ENDS = 60.0  # seconds an orphan may take to end


class Together(Kind):
    """See the module's docstring."""

    name = "together"
    good = ("equal", "orphan ended")
    bad = (
        "traceback",
        "other content",
        "lost files",
        "stray files",
        "both wrote",
        "other not named",
        "nobody finished",
        "orphan lives on",
    )
    trials = len(STAGES) * len(OFFSETS) + ORPHANS

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
        files = self.bench.references.of(stage).files
        outcome = judged([*ended, last], files, folder / "run", note, row)
        if outcome.verdict == "does not end" or all(end.code for end in ended):
            return replace(outcome, verdict="nobody finished")
        if outcome.verdict != "equal":
            return outcome
        if both_wrote(ended):
            return Outcome("both wrote", note, row)
        return self._naming(ended, note, row)

    def _naming(self, ended: list[Ended], note: str, row: str) -> Outcome:
        """A refusal must name one of the other processes by its id."""
        for end in ended:
            others = [str(other.pid) for other in ended if other is not end]
            if end.code != 0 and not any(pid in end.output for pid in others):
                return Outcome("other not named", f"{note}\n{end.output[-1_000:]}", row)
        return Outcome("equal", note, row)


def both_wrote(ended: list[Ended]) -> bool:
    """Whether two finished runs changed files at the same time.

    A refused run does not count: it may have tested whether it can write.
    """
    spans = sorted(
        (end.first_change, end.last_change) for end in ended if end.last_change and end.code == 0
    )
    return any(later[0] < earlier[1] for earlier, later in zip(spans, spans[1:]))


# ---- orphans -------------------------------------------------------------------------------------


def sleeping_stage(started: str) -> None:
    """The program of the orphan, started with `run_main` like every command of the repository."""
    from fgrlhf.base.files import write_text
    from fgrlhf.base.program import run_main

    def sleep() -> None:
        write_text(started, "started")
        time.sleep(3_000)

    run_main(sleep)


def orphan_pipeline(folder: str) -> None:
    """A pipeline of one stage that sleeps below a shell, like the scripts of the stages."""
    from fgrlhf.pipeline.stages import Pipeline
    from fgrlhf.pipeline.stages import Stage as PipelineStage

    program = f"'{sys.executable}' -m faults.together sleep '{folder}/started'; true"
    stage = PipelineStage("sleeps", ("bash", "-c", program), outputs=("x",))
    Pipeline([stage], ROOT, Path(folder) / "run", {}, lanes=1).run()


def orphan_trial(folder: Path, index: int) -> Outcome:
    """Kill a pipeline while its stage runs: the stage and its children must end."""
    row = "orphans of a killed pipeline"
    mark = f"{folder}/started"
    command = Command("faults.together", ("pipeline", str(folder)))
    child = start(command, folder, folder / "logs/0.txt")
    has_started = _until((folder / "started").exists, STARTS)
    child.kill()
    output = child.wait().output[-1_000:]
    alive = not _until(lambda: not processes_with(mark), ENDS)
    for pid in processes_with(mark):
        os.kill(pid, signal.SIGKILL)
    if not has_started:
        return Outcome("nobody finished", f"the pipeline started nothing:\n{output}", row)
    if alive:
        return Outcome("orphan lives on", f"the stage of trial {index} kept running", row)
    return Outcome("orphan ended", f"the stage of trial {index} ended", row)


def _until(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


if __name__ == "__main__":
    {"pipeline": orphan_pipeline, "sleep": sleeping_stage}[sys.argv[1]](sys.argv[2])
