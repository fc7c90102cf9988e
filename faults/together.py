"""Kind `together`: start a stage two or three times in one folder.

One process does the work; the others refuse and name it, or find the work done. Nothing is lost,
and the files are those of a single run.
"""

import time
from dataclasses import replace
from pathlib import Path

from faults.campaign import Kind
from faults.child import Ended, Running, run, start
from faults.judging import Outcome, judged

STAGES = ("generate", "sft", "fg_rm", "pref_rm", "oracle", "evaluate", "dpo")
FOUND_DONE = "this run is finished"
OFFSETS = (0.0, 0.1, 0.3, 0.6)  # fractions of the stage's run time


class Together(Kind):
    """See the module's docstring."""

    name = "together"
    good = ("equal",)
    bad = (
        "traceback",
        "other content",
        "lost files",
        "stray files",
        "both wrote",
        "other not named",
        "nobody finished",
    )
    cases = tuple((stage, offset) for offset in OFFSETS for stage in STAGES)

    def prepare(self, indices) -> None:
        for index in indices:
            self.bench.references.of(self.bench.world.stage(self.case(index)[0]))

    def run(self, index: int, folder: Path) -> Outcome:
        name, offset = self.case(index)
        number_of = 3 if self.bench.rng(self.name, index).random() < 0.2 else 2
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

    A refused run does not count, nor one that found the work done: it may have tested whether it
    can write.
    """
    wrote = [end for end in ended if end.code == 0 and FOUND_DONE not in end.output]
    spans = sorted((end.first_change, end.last_change) for end in wrote if end.last_change)
    return any(later[0] < earlier[1] for earlier, later in zip(spans, spans[1:]))
