"""Kind `kill`: kill a run, once or several times, and restart it until it ends.

It must leave the files of an uninterrupted run. There are two kinds of deaths. A crash point is
kill -9 before the n-th change of a file below the run's folder; the trials are spread over all
changes. A random death occurs after a share of the CPU time of the whole run, so it also hits
writes and computations in progress.
"""

import sys
from pathlib import Path

from faults.campaign import Kind, in_child
from faults.child import Command, CrashPoint, run
from faults.judging import Outcome, WholeRun, judged, snapshot
from faults.world import Stage

SHARES = {  # stage -> trials at scale 1
    "sft": 90,
    "fg_rm": 50,
    "pref_rm": 50,
    "ppo": 40,
    "grpo": 25,
    "oracle": 30,
    "generate": 90,
    "evaluate": 95,
    "dpo": 30,
    "pipeline": 20,
}
TITLES = {
    "sft": "kill: SFT",
    "fg_rm": "kill: reward models",
    "pref_rm": "kill: reward models",
    "ppo": "kill: RL",
    "grpo": "kill: RL",
    "oracle": "kill: RL",
    "generate": "kill: generate",
    "evaluate": "kill: evaluate",
    "dpo": "kill: DPO",
    "pipeline": "kill: pipeline",
}
MOST_RUNS = 8
NEWLINE = b"\n"


class Kill(Kind):
    """See the module's docstring."""

    name = "kill"
    good = ("equal",)
    bad = ("traceback", "other content", "lost files", "stray files", "does not end")
    trials = sum(SHARES.values())

    def prepare(self, indices) -> None:
        names = {self.place(index)[0] for index in indices}
        for name in sorted(names - {"pipeline"}):
            self.bench.references.of(self.bench.world.stage(name))
        if "pipeline" in names:
            self.pipeline_changes = in_child(
                pipeline_changes, self.bench.folder / "reference" / "pipeline"
            )

    def place(self, index: int) -> tuple[str, int, int]:
        """(stage, the trial's number within its stage, number of trials of the stage)."""
        counts = {name: max(1, round(share * self.bench.scale)) for name, share in SHARES.items()}
        for name, count in counts.items():
            if index < count:
                return name, index, count
            index -= count
        raise IndexError(f"{self.name} has {self.count()} trials")

    def count(self) -> int:
        return sum(max(1, round(share * self.bench.scale)) for share in SHARES.values())

    def run(self, index: int, folder: Path) -> Outcome:
        name, number, count = self.place(index)
        if name == "pipeline":
            return self._kill_pipeline(index, number, count, folder)
        stage = self.bench.world.stage(name)
        reference = self.bench.references.of(stage)
        rng = self.bench.rng(self.name, index)
        deaths = [self._death(rng, reference, number, count)]
        while rng.random() < 0.3 and len(deaths) < 4:
            deaths.append(self._death(rng, reference, rng.randrange(count), count))
        return kill_trial(stage, reference, deaths, folder, TITLES[name])

    def _death(self, rng, reference: WholeRun, number: int, count: int) -> dict:
        """Two of three trials are evenly spaced crash points; the third is a random death."""
        if number % 3 == 2:
            return {"die_after": rng.random() * reference.cpu}
        even = (number + rng.random()) / count
        return {"crash": CrashPoint(1 + int(even * reference.changes))}

    def _kill_pipeline(self, index: int, number: int, count: int, folder: Path) -> Outcome:
        rng = self.bench.rng(self.name, index)
        changes = self.pipeline_changes
        at = int((number + rng.random()) / max(count, 1) * changes) % changes
        return pipeline_trial(folder, 1 + at, TITLES["pipeline"])


def kill_trial(
    stage: Stage, reference: WholeRun, deaths: list[dict], folder: Path, row: str = ""
) -> Outcome:
    """Run a stage with these deaths one after another, then until it ends, and compare."""
    kills = 0
    notes = []
    for number in range(MOST_RUNS):
        plan = deaths[number] if number < len(deaths) else {}
        ended = run(stage.command, folder, folder / "logs" / f"{number}.txt", **plan)
        notes.append(f"run to {_end_of(plan)}: exit {ended.code}")
        kills += ended.killed
        goes_on = ended.killed or (ended.code != 0 and number < len(deaths))
        if ended.has_traceback or not goes_on:
            break
    note = "; ".join(notes) + _row_counts(folder / "run")
    return judged([ended], reference.files, folder / "run", note, row, {"kills": kills})


def _end_of(plan: dict) -> str:
    if "crash" in plan:
        return str(plan["crash"])
    if "die_after" in plan:
        return f"{plan['die_after']:.2f} s of CPU"
    return "the end"


def _row_counts(folder: Path) -> str:
    """How many rows each file of rows has, for the reader of a failure."""
    files = sorted(folder.rglob("*.jsonl"))
    return "".join(f"; {file.name}: {file.read_bytes().count(NEWLINE)} rows" for file in files)


# ---- the pipeline --------------------------------------------------------------------------------

STAGE = """
import pathlib, sys, time
path = pathlib.Path(sys.argv[1])
time.sleep(0.05)
temporary = path.with_name("." + path.name)
temporary.write_text("x")
temporary.rename(path)
"""
STAGES = 3


def run_pipeline(folder: str, at: str) -> None:
    """A pipeline of small scripts; the program of the children below."""
    from fgrlhf.pipeline.stages import Pipeline
    from fgrlhf.pipeline.stages import Stage as PipelineStage

    root, out = Path(folder), Path(folder) / "run"
    chain = []
    for i in range(STAGES):
        command = (sys.executable, "-S", "-c", STAGE, str(out / f"{i}.txt"))
        needs = (f"stage-{i - 1}",) if i else ()
        chain.append(PipelineStage(f"stage-{i}", command, needs=needs, outputs=(f"{i}.txt",)))
    Pipeline(chain, root, out, {}, lanes=1).run()


def _pipeline_command(folder: Path) -> Command:
    return Command("faults.kill", (str(folder), "0"))


def pipeline_changes(folder: Path) -> int:
    """Number of changes that an uninterrupted run of the pipeline makes."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = run(_pipeline_command(folder), folder, folder / "log.txt")
    if ended.code != 0:
        raise RuntimeError(f"the uninterrupted pipeline failed:\n{ended.output}")
    return ended.changes


def pipeline_trial(folder: Path, at: int, row: str) -> Outcome:
    """Kill a pipeline before its `at`-th change, run it again, and check what it leaves."""
    command = _pipeline_command(folder)
    first = run(command, folder, folder / "logs/0.txt", crash=CrashPoint(at))
    second = run(command, folder, folder / "logs/1.txt")
    note = f"killed before change {at} (exit {first.code}), then exit {second.code}"
    kills = {"kills": int(first.killed)}
    ended = judged([first, second], {}, folder / "run", note, row, kills)
    if ended.verdict in ("traceback", "does not end"):
        return ended
    expected = {f"{i}.txt" for i in range(STAGES)} | {f"logs/stage-{i}.log" for i in range(STAGES)}
    expected |= {"pipeline.json", "stages.json"}
    taken = {name for name in snapshot(folder / "run") if "lock" not in name}
    if expected - taken:
        return Outcome("lost files", f"{note}: lost {sorted(expected - taken)}", row, kills)
    if taken - expected:
        return Outcome("stray files", f"{note}: stray {sorted(taken - expected)}", row, kills)
    return Outcome("equal", note, row, kills)


if __name__ == "__main__":
    run_pipeline(*sys.argv[1:])
