"""Memory of each process of two: whole models (`ddp`) and sharded ones (`fsdp2`).

    python -m benchmarks.ranks                     --help lists the keys

One axis varies at a time: prompts of a step, tokens of a prompt, tokens of an answer. Every point
is a PPO step of two processes on a CPU. The memory is the largest resident set of a process,
without that after its imports. Writes `ranks.json` and `ranks.md`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, PositiveInt

from benchmarks import ours
from benchmarks.harness import (
    PeakMemory,
    Progress,
    ResultSettings,
    in_processes,
    number,
    table,
)
from benchmarks.measure import run_loop_step, size_of
from benchmarks.scaling import AXES as ALL_AXES
from benchmarks.scaling import at
from benchmarks.workload import RMDims, Size, T5Dims
from fgrlhf.base.files import write_json
from fgrlhf.base.processes import environments_of_group
from fgrlhf.cli.command_line import run_program

RANKS = 2
STRATEGIES = ("ddp", "fsdp2")
DIMS = T5Dims(512, 2048, 32, 16, 4, 2000)
AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "prompts": ("prompts of a step", (2, 4, 8, 16)),
    **{name: ALL_AXES[name] for name in ("prompt_tokens", "answer_tokens")},
}
# glibc returns freed blocks of this many bytes or more to the system at once. Otherwise the
# resident set depends on how blocks happen to lie, and changes from run to run by a tenth.
RETURN_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536"}


class RanksSettings(ResultSettings):
    """Options of the program."""

    points: PositiveInt | None = Field(
        None, description="number of points per axis, from the smallest; null: all"
    )


def size_at(axis: str, value: int) -> Size:
    """A wide model, so that its weights are most of the memory.

    One epoch has the same peak as four.
    """
    size = replace(at(axis, value), policy=DIMS, value=DIMS, reward=RMDims(64, 128, 4, 1, 128))
    size = replace(size, epochs=1)
    if axis != "prompts":
        size = replace(size, prompts=RANKS)
    return replace(size, samples=2, prompt_tokens=value if axis == "prompt_tokens" else 256)


def peaks_here(size: Mapping[str, Any], strategy: str) -> dict[str, float]:
    """Peaks of this process in MB: after building the models, and in each half of a step."""
    torch.set_num_threads(1)
    memory = PeakMemory()
    memory.reset()
    imports = memory.peak_mb()
    trainer = ours.build(size_of(size), strategy="fsdp2" if strategy == "fsdp2" else "ddp")
    peaks = {"build": memory.peak_mb() - imports}
    run_loop_step(trainer)  # Adam's moments exist from the second step on
    for phase, peak in run_loop_step(trainer).peak_mb.items():
        peaks[phase] = peak - imports
    return peaks


def measured(size: Size, strategy: str) -> dict[str, float]:
    """Peaks of the process that needs most, in two processes."""
    environments = [variables | RETURN_AT_ONCE for variables in environments_of_group(RANKS)]
    arguments = {"size": asdict(size), "strategy": strategy}
    ranks = in_processes("benchmarks.ranks:peaks_here", arguments, environments)
    return {name: max(peaks[name] for peaks in ranks) for name in ranks[0]}


# ---- the document --------------------------------------------------------------------------------

Points = Sequence[Mapping[str, float]]


def memory_table(results: Mapping[str, Mapping[str, Points]]) -> str:
    header = ["against", "value"]
    header += [f"{strategy}, {phase}" for strategy in STRATEGIES for phase in ("rollout", "update")]
    rows = []
    for axis, by_strategy in results.items():
        for points in zip(*(by_strategy[strategy] for strategy in STRATEGIES)):
            cells = [number(point[phase]) for point in points for phase in ("rollout", "update")]
            rows.append([AXES[axis][0], f"{points[0]['x']:,}", *cells])
    return table(header, rows)


def document(results: Mapping[str, Mapping[str, Points]]) -> str:
    base = (
        f"MB of the larger of {RANKS} processes above its imports. Policy, critic and reference of"
        f" width {DIMS.d_model}, 2 samples per prompt, fp32."
    )
    return f"{base}\n\n{memory_table(results)}\n"


def run(settings: RanksSettings) -> None:
    """Measure all points, and write the table."""
    say = Progress()
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for axis, (_, values) in AXES.items():
        results[axis] = {strategy: [] for strategy in STRATEGIES}
        for value in values[: settings.points]:
            for strategy in STRATEGIES:
                peaks = measured(size_at(axis, value), strategy)
                results[axis][strategy].append({"x": value, **peaks})
                text = ", ".join(f"{name} {peak:.0f} MB" for name, peak in peaks.items())
                say(f"{axis} {value:,}, {strategy}: {text}")
        write_json(Path(settings.output_dir) / "ranks.json", results)
    settings.publish("ranks", document(results))


if __name__ == "__main__":
    run_program(run, RanksSettings)
