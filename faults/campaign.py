"""Trials, their outcomes, the processes they run in, and the table.

A trial is a pure function of (kind, seed, scale, index). It runs in a forked process. If that dies,
the trial has failed.
"""

import json
import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from faults.judging import Outcome, References
from faults.world import World
from fgrlhf.base.files import write_text

PULSE = 15.0  # seconds between progress lines


@dataclass
class Bench:
    """The environment of a trial: the tiny world, the seed, and a folder to write to."""

    world: World
    seed: int
    scale: float
    folder: Path  # scratch; each trial has a subfolder, which is kept if the trial fails

    def __post_init__(self):
        self.references = References(self.folder / "reference")

    def rng(self, kind: str, index: int) -> random.Random:
        return random.Random(f"{self.seed}/{kind}/{index}")


class Kind:
    """A kind of fault. Subclasses define the number of trials and run the trial of an index."""

    name: str
    good: tuple[str, ...]  # verdicts that pass
    bad: tuple[str, ...]  # verdicts that fail; the table shows them all, zeros included
    cases: Sequence[Any] = ()  # what `case` chooses from
    trials = 0  # at scale 1; 0: one of each case

    def __init__(self, bench: Bench):
        self.bench = bench

    def prepare(self, indices: Sequence[int]) -> None:
        """Prepare the trials, for example with uninterrupted runs.

        Models may only run in forked children.
        """

    def count(self) -> int:
        return max(1, round((self.trials or len(self.cases)) * self.bench.scale))

    def case(self, index: int) -> Any:
        """The case of an index; a small number of trials is spread over all cases."""
        return self.cases[index * len(self.cases) // self.count() % len(self.cases)]

    def run(self, index: int, folder: Path) -> Outcome:
        """Run the trial of that index in `folder`, which is empty."""
        raise NotImplementedError("abstract: a kind must define `run`")

    def died(self, code: int) -> Outcome:
        """The outcome of a trial whose process died; a negative `code` is a signal."""
        return Outcome(self.bad[0], f"the process ended with {code}")


@dataclass(frozen=True)
class Failure:
    """A failed trial and how to run it again."""

    kind: str
    index: int
    outcome: Outcome
    folder: str
    command: str


@dataclass
class Tally:
    """A kind's outcomes so far."""

    kind: Kind
    rows: dict[str, Counter] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        row = self.rows.setdefault(outcome.row or self.kind.name, Counter())
        row["tried"] += 1
        row[outcome.verdict] += 1
        row.update(outcome.counts)


# ---- running -------------------------------------------------------------------------------------


def in_child(function, *arguments: Any) -> Any:
    """Call a function in a forked process and return its JSON-able result.

    Raises `RuntimeError` if it fails.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            with open(writer, "w") as pipe:
                json.dump(function(*arguments), pipe)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader) as pipe:
        text = pipe.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError(
            f"{getattr(function, '__name__', 'a function')} failed; its traceback is above"
        )
    return json.loads(text)


def run_kind(kind: Kind, indices: Sequence[int], lanes: int = 2, quiet: bool = False) -> Tally:
    """Run trials, `lanes` processes at a time."""
    tally = Tally(kind)
    started = time.monotonic()
    waiting = list(indices)
    running: list[_Trial] = []
    pulse = started
    while waiting or running:
        while waiting and len(running) < lanes:
            running.append(_Trial(kind, waiting.pop(0)))
        for trial in list(running):
            outcome = trial.outcome()
            if outcome is not None:
                running.remove(trial)
                _settle(tally, trial.index, outcome)
        now = time.monotonic()
        tally.seconds = now - started
        if not quiet and now - pulse >= PULSE:
            pulse = now
            _progress(tally, len(indices))
        time.sleep(0.01)
    return tally


class _Trial:
    """A forked process that runs a trial and writes its outcome to a file."""

    def __init__(self, kind: Kind, index: int):
        self.kind, self.index = kind, index
        folder = trial_folder(kind, index)
        self.result = folder.with_name(f"{folder.name}.json")
        self.result.unlink(missing_ok=True)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _work(kind, index, folder, self.result)

    def outcome(self) -> Outcome | None:
        """How the trial ended; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        if not self.result.exists():
            return self.kind.died(os.waitstatus_to_exitcode(status))
        outcome = Outcome(**json.loads(self.result.read_text()))
        self.result.unlink()
        return outcome


def _work(kind: Kind, index: int, folder: Path, result: Path) -> None:
    code = 1
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            outcome = kind.run(index, folder)
        except Exception:
            outcome = Outcome(kind.bad[0], f"the trial itself failed:\n{traceback.format_exc()}")
        write_text(result, json.dumps(asdict(outcome)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def trial_folder(kind: Kind, index: int) -> Path:
    return kind.bench.folder / "trials" / f"{kind.name}-{index}"


def _settle(tally: Tally, index: int, outcome: Outcome) -> None:
    kind = tally.kind
    folder = trial_folder(kind, index)
    tally.add(outcome)
    if outcome.verdict in kind.good:
        shutil.rmtree(folder, ignore_errors=True)
        return
    kept = kind.bench.folder / "failed" / folder.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    folder.rename(kept)
    arguments = f"kinds={kind.name} seed={kind.bench.seed} scale={kind.bench.scale:g} only={index}"
    command = f'make faults ARGS="{arguments}"'
    note = outcome.note.encode("utf-8", "backslashreplace").decode()
    (kept / "FAILED.txt").write_text(f"{command}\n{outcome.verdict}: {note}\n", encoding="utf-8")
    tally.failures.append(Failure(kind.name, index, outcome, str(kept), command))


def _progress(tally: Tally, total: int) -> None:
    done = sum(row["tried"] for row in tally.rows.values())
    rate = done / tally.seconds
    left = f"{(total - done) / rate / 60:.1f} min left" if done else "..."
    failed = len(tally.failures)
    progress = f"{done} of {total}, {failed} failed, {rate:.1f} per second, {left}"
    print(f"  {tally.kind.name}: {progress}", flush=True)


# ---- the table -----------------------------------------------------------------------------------


def table_rows(tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    """{kind, tried, result, failed, counts} per line of the table."""
    rows = []
    for tally in tallies:
        kind = tally.kind
        for name, counts in tally.rows.items():
            tried = f"{counts['tried']:,}"
            extra = [key for key in counts if key not in (*kind.good, *kind.bad, "tried")]
            tried += "".join(f", {counts[key]:,} {key}" for key in extra)
            good = [f"{counts[verdict]:,} {verdict}" for verdict in kind.good if counts[verdict]]
            bad = [f"{counts[verdict]:,} {verdict}" for verdict in kind.bad]
            marked = [f"**{text}**" if not text.startswith("0 ") else text for text in bad]
            failed = sum(counts[verdict] for verdict in kind.bad)
            rows.append(
                {
                    "kind": name,
                    "tried": tried,
                    "result": ", ".join([*good, *marked]),
                    "failed": failed,
                    "counts": dict(counts),
                }
            )
    return rows


def table(tallies: Sequence[Tally]) -> str:
    """The table as markdown."""
    lines = ["| kind | tried | result |", "|---|---|---|"]
    lines += [
        f"| {row['kind']} | {row['tried']} | {row['result']} |" for row in table_rows(tallies)
    ]
    return "\n".join(lines)
