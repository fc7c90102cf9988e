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
    ResultSettings,
    in_processes,
    number,
    table,
)
from benchmarks.measure import run_loop_step, size_of
from benchmarks.scaling import AXES as ALL_AXES
from benchmarks.scaling import at, sweep
from benchmarks.workload import RMDims, Size, T5Dims
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


def measure_point(axis: str, value: int) -> dict[str, float]:
    """x, and the peaks of the process that needs most, of two, by strategy and phase."""
    point: dict[str, float] = {"x": value}
    for strategy in STRATEGIES:
        environments = [variables | RETURN_AT_ONCE for variables in environments_of_group(RANKS)]
        arguments = {"size": asdict(size_at(axis, value)), "strategy": strategy}
        ranks = in_processes("benchmarks.ranks:peaks_here", arguments, environments)
        for phase in ranks[0]:
            point[f"{strategy}, {phase}"] = max(peaks[phase] for peaks in ranks)
    return point


def document(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """The peaks of both halves of a step as a table, under a description."""
    base = (
        f"MB of the larger of {RANKS} processes above its imports. Policy, critic and reference of"
        f" width {DIMS.d_model}, 2 samples per prompt, fp32."
    )
    columns = [f"{strategy}, {half}" for strategy in STRATEGIES for half in ("rollout", "update")]
    rows = []
    for axis, points in results.items():
        for point in points:
            cells = [number(point[column]) for column in columns]
            rows.append([AXES[axis][0], f"{point['x']:,}", *cells])
    return f"{base}\n\n{table(['against', 'value', *columns], rows)}\n"


def run(settings: RanksSettings) -> None:
    """Measure all points, and write the table."""
    axes = {axis: values[: settings.points] for axis, (_, values) in AXES.items()}
    results = sweep(axes, measure_point, Path(settings.output_dir) / "ranks.json")
    settings.publish("ranks", document(results))


if __name__ == "__main__":
    run_program(run, RanksSettings)
