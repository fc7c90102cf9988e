"""The library compared with other packages on equal work.

    python -m benchmarks.peers [--rows reward_trainer] [--rounds 5] [--tune] [--out outputs]

A row of the table is a `PeerComparison`: two sides that do the same work in one process, in
alternating order. The table lists the medians, the ratio of every round and their median, and each
side's peak memory in a separate process. Before anything is timed, the row's own `check` verifies
that both sides compute the same.

`--tune` first tries all settings that a row lists for its sides and times the fastest ones; by
default each side uses its first setting. The results are written to `bench_peers.json` and
`bench_peers.md`, the table in benchmarks/PEERS.md.

The peers are installed by the extra `peers` of setup.py and are never a dependency. To add a row,
write a module with a function `comparison` and list it in `ROWS`.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks import harness
from benchmarks.harness import MB, in_processes, one_round
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json, write_text
from fgrlhf.base.program import run_main

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


# ---- numbers -------------------------------------------------------------------------------------


def paired(ours: Sequence[Measured], peer: Sequence[Measured]) -> dict[str, Any]:
    """Medians of both rates, and the ratio of every round. `cpu_ratio` uses CPU time."""
    both = list(zip(ours, peer, strict=True))
    ratios = [a.rate / b.rate for a, b in both]
    cpu_ratios = [(a.units / a.cpu_seconds) / (b.units / b.cpu_seconds) for a, b in both]
    return {
        "ours": statistics.median(a.rate for a in ours),
        "peer": statistics.median(b.rate for b in peer),
        "ratio": statistics.median(ratios),
        "ratio_rounds": ratios,
        "cpu_ratio": statistics.median(cpu_ratios),
        "rounds": {"ours": [asdict(a) for a in ours], "peer": [asdict(b) for b in peer]},
    }


def alternate(
    comparison: PeerComparison, work: Any, choices: Mapping[str, Choice], rounds: int
) -> dict[str, Any]:
    """Run both sides in each round; every other round begins with the peer."""
    sides = {side: partial(comparison.side(side).run, work, choices[side]) for side in SIDES}
    runs = []
    for i in range(rounds):
        runs.append(one_round(sides, i))
        print(
            f"  round {i + 1}: ours {runs[-1]['ours'].rate:.3g}, {comparison.package}"
            f" {runs[-1]['peer'].rate:.3g} {comparison.unit}/s",
            flush=True,
        )
    return paired([run["ours"] for run in runs], [run["peer"] for run in runs])


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
    """Measure one row."""
    require(comparison.package)
    print(f"{comparison.name}: {comparison.what}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = comparison.prepare(Path(folder))
        facts = comparison.check(work)
        choices, tried = {side: comparison.side(side).choices[0] for side in SIDES}, {}
        if tune:
            choices, tried = fastest(comparison, work)
        result = alternate(comparison, work, choices, rounds)
    return {
        "what": comparison.what,
        "unit": comparison.unit,
        "at_least": comparison.at_least,
        "package": comparison.package,
        "version": importlib.metadata.version(comparison.package),
        "work": facts,
        "choices": {side: dict(choice) for side, choice in choices.items()},
        "tried": tried,
        **result,
        "memory": {side: memory(comparison.name, side, choices[side]) for side in SIDES},
    }


HEAD = (
    "| | peer | ours | peer's | ratio (rounds) | of CPU time | goal | peak memory, ours / peer's"
    " |\n|---|---|---|---|---|---|---|---|"
)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """One line per row: median rates, the median ratio and its range over the rounds."""
    lines = [HEAD]
    for name, result in results.items():
        low, high = min(result["ratio_rounds"]), max(result["ratio_rounds"])
        ours_mb, peer_mb = (result["memory"][side]["peak_mb"] for side in SIDES)
        cells = [
            name,
            f"{result['package']} {result['version']}",
            f"{result['ours']:.3g} {result['unit']}/s",
            f"{result['peer']:.3g} {result['unit']}/s",
            f"**{result['ratio']:.2f}** ({low:.2f} to {high:.2f})",
            f"{result['cpu_ratio']:.2f}",
            _goal_cell(result["ratio"], result["at_least"]),
            f"{ours_mb:.0f} / {peer_mb:.0f} MB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _goal_cell(ratio: float, goal: float | None) -> str:
    if goal is None:
        return ""
    return f"{goal:g}: {'met' if ratio >= goal else 'missed'}"


def main() -> None:
    # Offline, and without TRL's telemetry. huggingface_hub reads these variables at import.
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="The library compared with other packages on equal work.",
    )
    parser.add_argument(
        "--rows", nargs="+", default=list(ROWS), help=f"out of {', '.join(ROWS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tune", action="store_true", help="first try all settings of both sides")
    parser.add_argument("--out", type=Path, default=Path("outputs"))
    options = parser.parse_args()
    comparisons = [row(name) for name in options.rows]
    for comparison in comparisons:
        require(comparison.package)
    results = {}
    for comparison in comparisons:
        results[comparison.name] = compare(comparison, options.rounds, options.tune)
        # after every row: a later one may fail
        about = {"machine": harness.machine(), "rows": results}
        write_json(options.out / "bench_peers.json", about)
        write_text(options.out / "bench_peers.md", table(results))
    print(table(results) + f"written to {options.out / 'bench_peers.json'} and .md")


if __name__ == "__main__":
    run_main(main)
