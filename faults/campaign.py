"""Trials, their outcomes, the processes they run in, and the table.

A trial is a pure function of (kind, seed, scale, index). It runs in a forked process, alone or with
the other trials of its batch. If that process dies, the current trial has failed, and the rest of
the batch continues in a new process.
"""

import json
import os
import random
import resource
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

PULSE = 15.0  # seconds between progress lines
BATCH_CPU_LIMIT = 5  # CPU seconds; a batched trial that takes longer has failed


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
    batch = 1  # trials per process
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
    waiting = [list(indices[at : at + kind.batch]) for at in range(0, len(indices), kind.batch)]
    running: list[_Batch] = []
    pulse = started
    while waiting or running:
        while waiting and len(running) < lanes:
            running.append(_Batch(kind, waiting.pop(0)))
        for batch in list(running):
            for index, outcome in batch.outcomes():
                _settle(tally, index, outcome)
            if batch.ended:
                running.remove(batch)
                if batch.left:
                    _settle(tally, batch.left[0], kind.died(batch.code))
                    if batch.left[1:]:
                        waiting.insert(0, batch.left[1:])
        now = time.monotonic()
        tally.seconds = now - started
        if not quiet and now - pulse >= PULSE:
            pulse = now
            _progress(tally, len(indices))
        time.sleep(0.01)
    return tally


class _Batch:
    """A forked process that runs some trials and writes a line per outcome to a pipe."""

    def __init__(self, kind: Kind, indices: list[int]):
        self.left = indices
        self.ended = False
        self.code = 0
        self.reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            _work(kind, indices, writer)
        os.close(writer)
        os.set_blocking(self.reader, False)
        self.text = b""

    def outcomes(self) -> list[tuple[int, Outcome]]:
        """The outcomes since the last call."""
        # Checked before the pipe is read: if the process has ended, the pipe holds all its output.
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        while True:
            try:
                block = os.read(self.reader, 1 << 16)
            except BlockingIOError:
                break
            if not block:
                break
            self.text += block
        if pid:
            self.ended = True
            self.code = os.waitstatus_to_exitcode(status)
            os.close(self.reader)
        *lines, self.text = self.text.split(b"\n")
        settled = [json.loads(line) for line in lines]
        self.left = self.left[len(settled) :]
        return [(index, Outcome(**outcome)) for index, outcome in settled]


def _work(kind: Kind, indices: list[int], writer: int) -> None:
    code = 1
    try:
        for index in indices:
            folder = trial_folder(kind, index)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if kind.batch > 1:
                used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
                limit = int(used) + BATCH_CPU_LIMIT
                resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            try:
                outcome = kind.run(index, folder)
            except Exception:
                outcome = Outcome(
                    kind.bad[0], f"the trial itself failed:\n{traceback.format_exc()}"
                )
            os.write(writer, json.dumps([index, asdict(outcome)]).encode() + b"\n")
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
