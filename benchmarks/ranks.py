"""Memory of each process of two: whole models (`ddp`) and sharded ones (`fsdp2`).

    python -m benchmarks.ranks                     --help lists the keys

One axis varies at a time: prompts of a step, tokens of a prompt, tokens of an answer. Every point
is a PPO step of two processes on a CPU. The memory is the largest resident set of a process,
without that after its imports. Writes `ranks.json` and a plot.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from pydantic import Field, PositiveInt

from benchmarks import ours
from benchmarks.bench import Progress
from benchmarks.child import ROOT, size_of
from benchmarks.measure import PeakMemory, run_loop_step
from benchmarks.scaling import at
from benchmarks.tables import number, replace_part, table
from benchmarks.workload import RMDims, Size, T5Dims
from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.base.process_group import end_process_of_group, environments_of_group
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel

RANKS = 2
STRATEGIES = ("ddp", "fsdp2")
DIMS = T5Dims(512, 2048, 32, 16, 4, 2000)
AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "prompts": ("prompts of a step", (2, 4, 8, 16)),
    "prompt_tokens": ("tokens of a prompt", (128, 256, 512, 1024)),
    "answer_tokens": ("tokens of an answer", (50, 100, 200, 400)),
}
SPEC = "BENCHMARK_SPEC"  # environment variable of a measured process
# glibc returns freed blocks of this many bytes or more to the system at once. Otherwise the
# resident set depends on how blocks happen to lie, and changes from run to run by a tenth.
RETURN_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536"}


class Settings(StrictModel):
    """Options of the program."""

    points: PositiveInt | None = Field(
        None, description="number of points per axis, from the smallest; null: all"
    )
    output_dir: str = "outputs"
    plot: str = Field("outputs/plots/ranks.svg", description="file of the plot")
    results: str | None = Field(
        None, description="a document whose `ranks` part is replaced by table and plot"
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


# ---- a process -----------------------------------------------------------------------------------


def measure(size: Size, strategy: str) -> dict[str, float]:
    """Peaks of this process in MB: after building the models, and in each half of a step."""
    memory = PeakMemory()
    memory.reset()
    imports = memory.peak_mb()
    trainer = ours.build(size, strategy="fsdp2" if strategy == "fsdp2" else "ddp")
    peaks = {"build": memory.peak_mb() - imports}
    run_loop_step(trainer)  # Adam's moments exist from the second step on
    for phase, peak in run_loop_step(trainer).peak_mb.items():
        peaks[phase] = peak - imports
    return peaks


def rank_main(spec: Mapping) -> None:
    torch.set_num_threads(1)
    peaks = measure(size_of(spec["size"]), spec["strategy"])
    Path(f"{spec['result']}-rank{os.environ['RANK']}.json").write_text(json.dumps(peaks))
    end_process_of_group()


def measured(size: Size, strategy: str, result: Path) -> dict[str, float]:
    """Peaks of the process that needs most, in two processes.

    Raises:
      UserError: a process failed.
    """
    spec = {"size": asdict(size), "strategy": strategy, "result": str(result)}
    processes = []
    for variables in environments_of_group(RANKS):
        environment = {**os.environ, **RETURN_AT_ONCE, SPEC: json.dumps(spec), **variables}
        command = [sys.executable, "-m", "benchmarks.ranks"]
        processes.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        )
    errors = [process.communicate()[1].decode(errors="replace") for process in processes]
    if any(process.returncode for process in processes):
        text = "\n".join(error[-2000:] for error in errors)
        raise UserError(f"a process of {strategy} failed:\n{text}")
    ranks = []
    for rank in range(RANKS):
        ranks.append(json.loads(Path(f"{result}-rank{rank}.json").read_text()))
    return {name: max(peaks[name] for peaks in ranks) for name in ranks[0]}


# ---- the document --------------------------------------------------------------------------------

Points = Sequence[Mapping[str, float]]


def plot(results: Mapping[str, Mapping[str, Points]], path: Path) -> None:
    """One panel per axis, one line per strategy and half of a step."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "ranks", "font.size": 9}):
        figure, panels = plt.subplots(1, len(results), figsize=(9, 3), layout="constrained")
        for panel, (axis, by_strategy) in zip(panels, results.items()):
            for colour, (strategy, points) in zip(("C0", "C1"), by_strategy.items()):
                xs = [point["x"] for point in points]
                for phase, line in (("rollout", "o--"), ("update", "o-")):
                    peaks = [point[phase] for point in points]
                    label = f"{strategy}, {phase}"
                    panel.plot(xs, peaks, line, color=colour, markersize=3, label=label)
                panel.set_xticks(xs)
            panel.set(xlabel=AXES[axis][0], ylabel="MB of a process above imports")
            panel.set_ylim(bottom=0)
            panel.legend(loc="lower left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def memory_table(results: Mapping[str, Mapping[str, Points]]) -> str:
    header = ["against", "value"]
    header += [f"{strategy}, {phase}" for strategy in STRATEGIES for phase in ("rollout", "update")]
    rows = []
    for axis, by_strategy in results.items():
        for points in zip(*(by_strategy[strategy] for strategy in STRATEGIES)):
            cells = [number(point[phase]) for point in points for phase in ("rollout", "update")]
            rows.append([AXES[axis][0], f"{points[0]['x']:,}", *cells])
    return table(header, rows)


def document(results: Mapping[str, Mapping[str, Points]], path: Path, folder: Path) -> str:
    base = (
        f"MB of the larger of {RANKS} processes above its imports. Policy, critic and reference of"
        f" width {DIMS.d_model}, 2 samples per prompt, fp32."
    )
    image = f"![memory of a process]({os.path.relpath(path, folder)})"
    return "\n\n".join([base, memory_table(results), image]) + "\n"


def run(settings: Settings) -> None:
    """Measure all points, and write the table and the plot."""
    say = Progress()
    folder = Path(settings.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for axis, (_, values) in AXES.items():
        results[axis] = {strategy: [] for strategy in STRATEGIES}
        for value in values[: settings.points]:
            for strategy in STRATEGIES:
                peaks = measured(size_at(axis, value), strategy, folder / "ranks")
                results[axis][strategy].append({"x": value, **peaks})
                text = ", ".join(f"{name} {peak:.0f} MB" for name, peak in peaks.items())
                say(f"{axis} {value:,}, {strategy}: {text}")
        write_json(folder / "ranks.json", results)
    plot(results, Path(settings.plot))
    print(f"\n{memory_table(results)}\n", flush=True)
    if settings.results:
        where = Path(settings.results).parent
        replace_part(settings.results, "ranks", document(results, Path(settings.plot), where))


if __name__ == "__main__":
    if SPEC in os.environ:
        run_main(lambda: rank_main(json.loads(os.environ[SPEC])))
    else:
        run_main(lambda: run(settings_from(Settings)))
