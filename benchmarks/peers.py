"""The library compared with other packages on equal work.

    python -m benchmarks.peers [rows=[reward_trainer]] [rounds=5] [tune=true]

A row of the table is a `PeerComparison`: two sides that do the same work in one process, in
alternating order. The table lists the medians, the median ratio of the rounds and its range, and
each side's peak memory in a separate process. Before anything is timed, the row's own `check`
verifies that both sides compute the same.

With `tune`, all settings that a row lists for its sides are tried first, and the fastest ones are
timed; by default each side uses its first setting. The results are written to `bench_peers.json`
and `bench_peers.md`, the table in benchmarks/PEERS.md.

The peers are installed by the extra `peers` of setup.py and are never a dependency. To add a row,
write a module with a function `comparison` and list it in `ROWS`.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from pydantic import Field, PositiveInt

from benchmarks import harness
from benchmarks.harness import MB, alternate, by_phase, in_processes
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_text
from fgrlhf.cli.command_line import run_program
from fgrlhf.configs.strict import StrictModel

# row -> function that returns its `PeerComparison`, imported when the row is run
ROWS = {
    "reward_trainer": "benchmarks.peer_reward_trainer:comparison",
    "dpo": "benchmarks.peer_dpo:comparison",
    "grpo": "benchmarks.peer_grpo:comparison",
    "smollm2": "benchmarks.peer_grpo:comparison_smollm2",
}
SIDES = ("ours", "peer")
INSTALL = "pip install -c constraints.txt -e '.[peers]'"

Choice = Mapping[str, Any]  # settings of one side


class PeersSettings(StrictModel):
    """`make bench-peers`."""

    rows: list[str] = Field(list(ROWS), description=f"out of {', '.join(ROWS)}")
    rounds: PositiveInt = Field(5, description="runs of each side")
    tune: bool = Field(False, description="first try all settings of both sides")
    output_dir: Path = Path("outputs")


@dataclass(frozen=True)
class Measured:
    """`units` of work done in `seconds` and `cpu_seconds`, set-up excluded.

    loss: the mean over the steps, to verify that both sides learn the same.
    """

    units: int
    seconds: float
    cpu_seconds: float
    loss: float | None = None

    @property
    def rate(self) -> float:
        return self.units / self.seconds

    @property
    def of_a_unit(self) -> dict[str, float]:
        """Seconds and CPU seconds of a unit."""
        return {"step": self.seconds / self.units, "cpu": self.cpu_seconds / self.units}


@dataclass(frozen=True)
class Side:
    """One package's implementation of the work.

    run: (work, choice) -> Measured. choices: its sensible settings, the fastest known one first.
    """

    run: Callable[[Any, Choice], Measured]
    choices: Sequence[Choice] = ({},)


@dataclass(frozen=True)
class PeerComparison:
    """One row of the table.

    `package`: what must be installed.
    `unit`: what a rate counts.
    `prepare`: a folder -> the work, the same in every process.
    `check`: raises `UserError` if the sides do not compute the same, else returns facts about the
    work.
    """

    name: str
    package: str
    what: str
    unit: str
    prepare: Callable[[Path], Any]
    check: Callable[[Any], dict[str, Any]]
    ours: Side
    peer: Side
    at_least: float | None = None

    def side(self, name: str) -> Side:
        return {"ours": self.ours, "peer": self.peer}[name]


def require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{package} is not installed, but this comparison needs it: {INSTALL}")


def row(name: str) -> PeerComparison:
    if name not in ROWS:
        raise UserError(f"there is no row `{name}`; choose from {', '.join(ROWS)}")
    module, _, function = ROWS[name].partition(":")
    return getattr(importlib.import_module(module), function)()


# ---- settings -----------------------------------------------------------------------------------


def fastest(comparison: PeerComparison, work: Any) -> tuple[dict[str, Choice], dict[str, list]]:
    """Try all settings of both sides once. Returns each side's best setting and all rates."""
    best = {}
    tried = {}
    for side in SIDES:
        tried[side] = []
        for choice in comparison.side(side).choices:
            measured = comparison.side(side).run(work, choice)
            tried[side].append({"choice": dict(choice), **asdict(measured), "rate": measured.rate})
            print(f"  {side} {dict(choice)}: {measured.rate:.3g} {comparison.unit}/s", flush=True)
        best[side] = max(tried[side], key=lambda attempt: attempt["rate"])["choice"]
    return best, tried


# ---- memory --------------------------------------------------------------------------------------


def memory_here(name: str, side: str, choice: Choice) -> dict[str, float]:
    """Peak of this process, and the part above imports and the prepared work."""
    comparison = row(name)
    with tempfile.TemporaryDirectory() as folder:
        work = comparison.prepare(Path(folder))
        before = 0.0 if torch.cuda.is_available() else psutil.Process().memory_info().rss / MB
        comparison.side(side).run(work, choice)
    peak = harness.PeakMemory().peak_mb()
    # Linux counts the two slightly differently, so the difference may be negative
    return {"peak_mb": peak, "added_mb": max(peak - before, 0.0)}


def memory_of(name: str, side: str, choice: Choice) -> dict[str, float]:
    """Run `memory_here` in a fresh process."""
    arguments = {"name": name, "side": side, "choice": choice}
    return in_processes("benchmarks.peers:memory_here", arguments)[0]


# ---- the table -----------------------------------------------------------------------------------


def compare(
    comparison: PeerComparison, rounds: int, tune: bool = False, memory: Callable = memory_of
) -> dict[str, Any]:
    """Measure one row. `step` and `cpu` have the seconds of a unit; `baseline` is the peer."""
    require(comparison.package)
    print(f"{comparison.name}: {comparison.what}", flush=True)
    ours, peer = comparison.ours, comparison.peer
    with tempfile.TemporaryDirectory() as folder:
        work = comparison.prepare(Path(folder))
        facts = comparison.check(work)
        choices, tried = {"ours": ours.choices[0], "peer": peer.choices[0]}, {}
        if tune:
            choices, tried = fastest(comparison, work)
        sides = {
            "ours": lambda: ours.run(work, choices["ours"]).of_a_unit,
            "baseline": lambda: peer.run(work, choices["peer"]).of_a_unit,
        }
        measured = alternate(sides, rounds)
    return {
        "what": comparison.what,
        "unit": comparison.unit,
        "at_least": comparison.at_least,
        "package": comparison.package,
        "version": importlib.metadata.version(comparison.package),
        "work": facts,
        "choices": {side: dict(choice) for side, choice in choices.items()},
        "tried": tried,
        "rounds": measured,
        **by_phase(measured, ("step", "cpu")),
        "memory": {side: memory(comparison.name, side, choices[side]) for side in SIDES},
    }


HEADER = ("", "peer", "ours", "peer's", "ratio (rounds)", "ratio of CPU time", "goal")
HEADER += ("peak memory, ours / peer's",)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """One line per row: median rates, the median ratio and its range over the rounds."""
    rows = []
    for name, result in results.items():
        step, unit, goal = result["step"], result["unit"], result["at_least"]
        ours_mb, peer_mb = (result["memory"][side]["peak_mb"] for side in SIDES)
        reached = "met" if step["ratio"] >= (goal or 0) else "missed"
        cells = [
            name,
            f"{result['package']} {result['version']}",
            f"{1 / step['ours_s']:.3g} {unit}/s",
            f"{1 / step['baseline_s']:.3g} {unit}/s",
            f"**{step['ratio']:.2f}** ({step['lowest']:.2f} to {step['highest']:.2f})",
            f"{result['cpu']['ratio']:.2f}",
            "" if goal is None else f"{goal:g}: {reached}",
            f"{ours_mb:.0f} / {peer_mb:.0f} MB",
        ]
        rows.append(cells)
    return harness.table(HEADER, rows) + "\n"


def run(settings: PeersSettings) -> None:
    """Measure the rows, and write the results after each: a later one may fail."""
    # Offline, and without TRL's telemetry. huggingface_hub reads these variables at import.
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
    comparisons = [row(name) for name in settings.rows]
    for comparison in comparisons:
        require(comparison.package)
    results = {}
    for comparison in comparisons:
        results[comparison.name] = compare(comparison, settings.rounds, settings.tune)
        about = {"machine": harness.machine(), "rows": results}
        write_json(settings.output_dir / "bench_peers.json", about)
        write_text(settings.output_dir / "bench_peers.md", table(results))
    print(f"{table(results)}written to {settings.output_dir / 'bench_peers.json'} and .md")


if __name__ == "__main__":
    run_program(run, PeersSettings)
